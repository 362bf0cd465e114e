// One plot: uPlot's axes, cursor and zoom; lines, bands, markers, bars and final values as shapes, which export.js draws too.
"use strict";
(report => {
  const DOTTED_UP_TO = 60, SPARSE = 12; // markers of a short line, and of a longer one
  const MOST_READ = 12, MOST_RAW = 8; // lines in one hover; lines with logged values behind them
  const START = 0.1, SHORT = 12; // of the x-axis, where a steep start may leave the y-axis; rows of lines that are shown whole
  const ROW = 14, NEAR = 24, TICK = 44; // CSS pixels: between final values; between ends in one column of these; between ticks
  const FONT = "system-ui, sans-serif", GREY = "#7F7F7F";
  const color = name => getComputedStyle(document.body).getPropertyValue(name).trim();
  const ink = () => color("--ink");
  const seen = (value, log) => value !== null && value !== undefined && (!log || value > 0);
  const inside = (at, range) => at >= range[0] && at <= range[1];
  const visible = (line, o, range) => line.x.map((_, row) => row).filter(row =>
    seen(line.y[row], o.logY) && seen(line.x[row], o.logX) && inside(line.x[row], range));

  // The lowest and the highest value of some columns, of the rows within a range of the x-axis that each line has.
  function extent(lines, columns, log, range) {
    const values = lines.flatMap(line => columns.flatMap(column =>
      (line[column] || []).filter((value, row) => seen(value, log) && inside(line.x[row], range(line)))));
    return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : null;
  }

  function roomy(range, log, share) {
    if (!range) return log ? [1, 10] : [0, 1];
    const [low, high] = log ? range.map(Math.log) : range;
    const room = share * (high - low) || 0.05 * Math.abs(high) || 0.05;
    return log ? [Math.exp(low - room), Math.exp(high + room)] : [low - room, high + room];
  }

  // Of curves the lines alone set the y-axis, and wide bands are clipped; bars and the bands of differences are shown in full.
  function rangesOf(lines, o) {
    const own = extent(lines, ["x"], o.logX, () => [-Infinity, Infinity]);
    const x = o.x || (o.bars || !own ? roomy(own, o.logX, 0.06) : own);
    const isLong = Math.max(0, ...lines.map(line => line.x.length)) > SHORT;
    const start = o.logX ? x[0] * (x[1] / x[0]) ** START : x[0] + START * (x[1] - x[0]);
    // Of a line that ends early its second half is shown.
    const fitted = line => o.fit && !o.x && isLong ? [Math.min(start, line.x[line.x.length >> 1]), x[1]] : x;
    const y = extent(lines, o.bars || o.zero ? ["y", "low", "high"] : ["y"], o.logY, fitted);
    return { x, y: o.y || roomy(y && o.zero ? [Math.min(0, y[0]), Math.max(0, y[1])] : y, o.logY, 0.06) };
  }
  // Moves places as little as keeps them `gap` apart, between `low` and `high`.
  report.spread = (places, gap, low, high) => {
    const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
    const moved = places.slice();
    order.forEach((index, rank) => { if (rank) moved[index] = Math.max(moved[index], moved[order[rank - 1]] + gap); });
    order.reverse().reduce((limit, index) => (moved[index] = Math.max(low, Math.min(moved[index], limit))) - gap, high);
    return moved;
  };

  // Which labels stand `gap` apart, and where, by the index of their places: those that come first, and of the others those that
  // need no label to be further than 1.5 gaps from its place.
  report.beside = (places, gap, low, high) => {
    const moved = indices => report.spread(indices.map(index => places[index]), gap, low, high);
    const kept = places.reduce((some, _, index) => {
      const more = [...some, index];
      return moved(more).every((place, rank) => Math.abs(place - places[more[rank]]) <= 1.5 * gap) ? more : some;
    }, []);
    return new Map(moved(kept).map((place, rank) => [kept[rank], place]));
  };

  // The final values, each where its line ends and at its height, the lowest first: where there is no room, the table has them.
  function endShapes(plot, lines, o, width, height) {
    const ends = lines.map(line => ({ line, row: visible(line, o, o.ranges.x).pop() })).filter(each => each.row !== undefined)
      .map(each => ({ ...each, x: plot.valToPos(each.line.x[each.row], "x"), y: plot.valToPos(each.line.y[each.row], "y") }))
      .filter(each => inside(each.y, [-1, height + 1])).sort((a, b) => b.y - a.y);
    const columns = new Map();
    ends.forEach(end => { const at = Math.round((width - end.x) / NEAR); columns.set(at, [...(columns.get(at) || []), end]); });
    return Array.from(columns.entries()).flatMap(([at, column]) => {
      const places = report.beside(column.map(each => each.y), ROW, ROW / 2, height - ROW / 2);
      return Array.from(places.entries()).flatMap(([index, place]) => {
        const { line, row, x, y } = column[index], left = at ? Math.max(...column.map(each => each.x)) + 8 : width + 18;
        return [
          ...(at ? [] : [{ d: `M${x + 4} ${y}L${width + 15} ${place}`, stroke: GREY }]),
          { text: o.endText(line, line.y[row], at > 0), fill: at ? line.color : ink(), halo: color("--paper"), x: left, y: place + 4, size: at ? 11 : 12 },
        ];
      });
    });
  }

  // All that is drawn of the lines, in CSS pixels of the plot's area: what is clipped to it, and what is not.
  report.shapes = (plot, lines, o) => {
    const [width, height] = [plot.over.clientWidth, plot.over.clientHeight], clipped = [], free = [];
    // Intervals at one place would hide each other; as in mhsh/report/figures.py.
    const places = lines.flatMap(line => line.x), isShared = o.bars && new Set(places).size < places.length;
    const beside = line => isShared ? Math.min(6, 24 / lines.length) * (lines.indexOf(line) - (lines.length - 1) / 2) : 0;
    const at = (line, column) => line.x.map((x, row) => seen(x, o.logX) && seen(line[column][row], o.logY)
      ? [plot.valToPos(x, "x") + beside(line), plot.valToPos(line[column][row], "y")] : null);
    // On a logarithmic axis, what is not above zero is below the frame.
    const floored = line => o.logY ? { ...line, low: line.low.map(value => value === null ? null : Math.max(value, o.ranges.y[0] / 10)) } : line;
    const path = points => points.map((point, index) =>
      point ? `${points[index - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "").join("");
    o.references.forEach(each => clipped.push({ d: `M0 ${plot.valToPos(each.value, "y")}H${width}`, stroke: GREY, width: 1.5, dash: [3, 4] }));
    if (o.raw && lines.length <= MOST_RAW) lines.filter(line => line.raw).forEach(line => clipped.push({ d: path(at(line.raw, "y")), stroke: line.color, opacity: 0.25 }));
    lines.forEach(line => {
      const points = at(line, "y"), stroke = line.color, rows = visible(line, o, o.ranges.x);
      const [low, high] = line.low ? [at(floored(line), "low"), at(line, "high")] : [[], []];
      if (!o.bars && low.some(Boolean)) {
        const pieces = low.slice(1).map((end, row) => [low[row], high[row], high[row + 1], end]).filter(corners => corners.every(Boolean));
        clipped.push({ d: pieces.map(corners => path(corners) + "Z").join(""), fill: stroke, opacity: lines.length > 6 ? 0.07 : 0.15 });
      }
      clipped.push({ d: path(o.bars ? points.filter(Boolean) : points), stroke, width: 2, dash: line.dash });
      const every = rows.length <= DOTTED_UP_TO || o.bars ? 1 : Math.ceil(rows.length / SPARSE);
      rows.filter((_, index) => index % every === 0).forEach(row => {
        const [x, y] = points[row];
        if (o.bars && (low[row] || line.is_open[row])) { // an open end goes on to the frame
          const cap = end => end ? `M${x - 3} ${end[1]}h6` : "", [bottom, top] = [(low[row] || [x, height])[1], (high[row] || [x, 0])[1]];
          free.push({ d: `M${x} ${bottom}V${top}` + cap(low[row]) + cap(high[row]), stroke, width: 1.3 });
        }
        (o.bars ? free : clipped).push({ d: line.marker, fill: stroke, x, y, scale: o.bars ? 1 : 0.6 });
      });
      line.gaps.forEach(x => clipped.push({ text: "\u00d7", fill: stroke, x: plot.valToPos(x, "x") - 5, y: 14, size: 18 }));
    });
    return { clipped, free: !o.bars ? [...free, ...endShapes(plot, lines, o, width, height)] : free };
  };

  function paint(u, lines, o) {
    const context = u.ctx, ratio = devicePixelRatio, { clipped, free } = report.shapes(u, lines, o);
    const each = shape => {
      context.save();
      context.translate(u.bbox.left + ratio * (shape.x || 0), u.bbox.top + ratio * (shape.y || 0));
      context.scale(ratio * (shape.scale || 1), ratio * (shape.scale || 1));
      Object.assign(context, { fillStyle: shape.fill, strokeStyle: shape.stroke, lineWidth: shape.width || 1, globalAlpha: shape.opacity || 1 });
      Object.assign(context, { font: `600 ${shape.size}px ${FONT}`, textAlign: "left", textBaseline: "alphabetic", lineJoin: "round" });
      context.setLineDash(shape.dash || []);
      if (shape.halo) { // over curves
        Object.assign(context, { strokeStyle: shape.halo, lineWidth: 3 });
        context.strokeText(shape.text, 0, 0);
      }
      if (shape.text) context.fillText(shape.text, 0, 0);
      else if (shape.fill) context.fill(new Path2D(shape.d));
      if (shape.stroke) context.stroke(new Path2D(shape.d));
      context.restore();
    };
    const area = new Path2D();
    area.rect(u.bbox.left - 5 * ratio, u.bbox.top, u.bbox.width + 10 * ratio, u.bbox.height);
    context.save();
    context.clip(area);
    clipped.forEach(each);
    context.restore();
    free.forEach(each);
  }

  // The ticks of a logarithmic axis; as in mhsh/report/figure_files.py.
  function logTicks(low, high, most) {
    const powers = Array.from({ length: 40 }, (_, index) => index - 20);
    const kinds = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1]].map(digits =>
      powers.flatMap(power => digits.map(digit => Number(`${digit}e${power}`))).filter(tick => inside(tick, [low, high])));
    const found = kinds.find(ticks => ticks.length <= most) || [];
    if (found.length > 2) return found;
    const rough = (high - low) / Math.min(most, 6), unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find(each => each * unit >= rough), first = Math.ceil(low / step);
    return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, index) => (first + index) * step);
  }

  function axesOf(o) {
    const grid = { stroke: "rgba(128,128,128,0.25)", width: 1 };
    const values = (_, splits) => splits.map(value => value === null ? "" : report.number(value, 4));
    const common = { stroke: ink, grid, ticks: grid, values, font: `12px ${FONT}`, labelFont: `13px ${FONT}`, labelGap: 2, labelSize: 22 };
    const log = pixels => ({ filter: (_, splits) => splits, splits: (u, _, low, high) => logTicks(low, high, Math.floor(pixels(u) / TICK)) });
    const x = o.logX ? log(u => u.width - 150) : {}, y = o.logY ? log(u => u.height - 60) : {};
    return [{ ...common, label: o.xTitle, size: 30, ...x }, { ...common, label: o.yTitle, size: 54, ...y }];
  }
  const nearestRow = (x, at) => x.reduce((best, place, row) => Math.abs(place - at) < Math.abs(x[best] - at) ? row : best, 0);
  // As mhsh/text.py has it: an end that is open is not a bound.
  function intervalText(line, row, o) {
    const [low, high] = ["low", "high"].map(end => line[end] && seen(line[end][row]) ? o.valueText(line[end][row]) : null);
    if (low && high) return ` (${low} to ${high})`;
    return low ? ` (at least ${low})` : high ? ` (up to ${high})` : line.is_open && line.is_open[row] ? " (no bound)" : "";
  }
  // Shows every line's value near the cursor, the largest first.
  function read(u, place, lines, o) {
    const reading = place.querySelector("output"), { left, top } = u.cursor;
    const reaches = ({ x }) => o.bars || inside(left, [u.valToPos(x[0], "x") - 16, u.valToPos(x[x.length - 1], "x") + 16]);
    const found = left < 0 ? [] : lines.filter(reaches).map(line => ({ line, row: nearestRow(line.x, u.posToVal(left, "x")) }))
      .filter(({ line, row }) => line.y[row] !== null)
      .sort((a, b) => b.line.y[b.row] - a.line.y[a.row]);
    reading.hidden = !found.length;
    if (!found.length) return;
    const away = ({ line, row }) => Math.abs(u.valToPos(line.y[row], "y") - top);
    const near = found.slice().sort((a, b) => away(a) - away(b)), kept = new Set(near.slice(0, MOST_READ));
    const table = document.createElement("table");
    found.filter(each => kept.has(each)).forEach(each => {
      const { line, row } = each, cells = table.insertRow();
      cells.classList.toggle("nearest", each === near[0] && found.length > 1);
      cells.insertCell().append(report.swatch(line));
      cells.insertCell().textContent = line.name + (line.label && line.label[row] ? ": " + line.label[row] : "");
      cells.insertCell().textContent = o.valueText(line.y[row]) + intervalText(line, row, o);
    });
    const head = document.createElement("strong");
    head.textContent = o.placeText(near[0].line.x[near[0].row]) + " \u2014 " + o.yTitle;
    reading.replaceChildren(head, table, found.length > kept.size ? `and ${found.length - kept.size} lines further away` : "");
    const right = left > u.over.clientWidth / 2;
    reading.style.left = right ? "" : u.over.offsetLeft + left + 16 + "px";
    reading.style.right = right ? place.clientWidth - u.over.offsetLeft - left + 16 + "px" : "";
  }

  const tell = (place, detail) => place.dispatchEvent(new CustomEvent("zoom", { detail, bubbles: true }));
  // A box over the plot zooms in both directions, a flat one in x alone, a narrow one in y alone.
  function zoomed(u, place) {
    const { left, top, width, height } = u.select;
    if (width < 3 || height < 3) return;
    const x = width < u.over.clientWidth - 1 ? [left, left + width].map(at => u.posToVal(at, "x")) : null;
    const y = height < u.over.clientHeight - 1 ? [top + height, top].map(at => u.posToVal(at, "y")) : null;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    tell(place, { x, y });
  }

  // Draws `lines` into `place` in place of what was there. page.js names the options.
  report.plot = (place, lines, options) => {
    if (place.chart) place.chart.plot.destroy();
    const ranges = rangesOf(lines, options), o = { ...options, ranges };
    const ruler = document.createElement("canvas").getContext("2d");
    ruler.font = `600 12px ${FONT}`;
    const widths = !o.bars ? lines.map(line => ruler.measureText(o.endText(line, line.y[visible(line, o, ranges.x).pop()] || 0)).width) : [];
    const plot = new window.uPlot({
      width: place.clientWidth,
      height: place.clientHeight,
      padding: [10, !o.bars ? Math.min(0.4 * place.clientWidth, 26 + Math.max(0, ...widths)) : 16, 0, 0],
      legend: { show: false },
      cursor: {
        points: { show: false },
        drag: { x: !o.bars, y: !o.bars, uni: 24, setScale: false },
        sync: { key: place.dataset.points || "curves", scales: ["x", null], filters: { pub: type => /mouse(move|leave|enter)/.test(type) } },
      },
      scales: { x: { time: false, distr: o.logX ? 3 : 1, range: () => ranges.x }, y: { distr: o.logY ? 3 : 1, range: () => ranges.y } },
      axes: axesOf(o),
      series: [{}, { show: true, points: { show: false } }],
      hooks: { draw: [u => paint(u, lines, o)], setCursor: [u => read(u, place, lines, o)], setSelect: [u => zoomed(u, place)] },
    }, [ranges.x, [null, null]], place);
    plot.over.addEventListener("dblclick", () => tell(place, null));
    place.chart = { plot, lines, o };
    resizes.observe(place);
  };
  const resizes = new ResizeObserver(entries => entries.forEach(({ target }) => {
    const { plot } = target.chart;
    if (target.clientWidth && target.clientWidth !== plot.width) plot.setSize({ width: target.clientWidth, height: target.clientHeight });
  }));
  const moved = by => plot => {
    const { left, top } = plot.cursor, { clientWidth, clientHeight } = plot.over;
    plot.setCursor({ left: Math.min(clientWidth, Math.max(0, Math.max(left, 0) + by * clientWidth)), top: top >= 0 ? top : clientHeight / 2 });
  };
  const scaled = factor => ({ scales, cursor, posToVal }) => {
    const { min, max } = scales.x, at = cursor.left >= 0 ? posToVal(cursor.left, "x") : (min + max) / 2;
    return { x: [at - (at - min) * factor, at + (max - at) * factor], y: null };
  };
  const KEYS = { ArrowLeft: moved(-0.01), ArrowRight: moved(0.01), Home: moved(-1), End: moved(1), "+": scaled(0.5), "-": scaled(2), Escape: () => null };
  document.addEventListener("keydown", event => {
    const place = event.target.closest(".plot");
    if (!place || !place.chart || !(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const detail = KEYS[event.key](place.chart.plot);
    if (detail !== undefined) tell(place, detail);
  });
})(window.report);
