// One plot: lines drawn by uPlot, with markers, bars, gaps and final values of its own; a hover for all lines; zoom by mouse and keyboard.
"use strict";
(report => {
  const DOTTED_UP_TO = 60, SPARSE = 12; // markers of a short line, and of a longer one
  const MOST_READ = 12, MOST_ENDS = 14; // lines in one hover; final values
  const START = 0.1, SHORT = 12; // of the x-axis, where a steep start may leave the y-axis; rows of lines that are shown whole
  const ROW = 14; // CSS pixels between final values
  const FONT = "system-ui, sans-serif";
  const style = name => getComputedStyle(document.body).getPropertyValue(name).trim();
  const ink = () => style("--ink");
  const seen = (value, log) => value !== null && value !== undefined && (!log || value > 0);

  // The lowest and the highest value of some columns, of the rows between two places.
  report.extent = (lines, columns, log, within) => {
    let low = Infinity, high = -Infinity;
    lines.forEach(line => columns.forEach(column => (line[column] || []).forEach((value, row) => {
      if (!seen(value, log) || (within && (line.x[row] < within[0] || line.x[row] > within[1]))) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    })));
    return low <= high ? [low, high] : null;
  };

  const roomy = (range, log, share) => {
    if (!range) return log ? [1, 10] : [0, 1];
    const [low, high] = log ? range.map(Math.log) : range;
    const room = share * (high - low) || 0.05 * Math.abs(high) || 0.05;
    return log ? [Math.exp(low - room), Math.exp(high + room)] : [low - room, high + room];
  };

  // The series of uPlot: faint raw values, then each line with its band.
  function assemble(lines, o) {
    const tables = [], series = [{}], bands = [];
    const add = (line, columns, strokes) => {
      tables.push([line.x, ...columns]);
      strokes.forEach(stroke => series.push({ points: { show: false }, ...stroke }));
    };
    if (o.raw) lines.filter(line => line.raw).forEach(line => add(line.raw, [line.raw.y], [{ stroke: line.color + "40", width: 1 }]));
    lines.forEach(line => {
      if (!o.bars && line.low && line.low.some(value => value !== null)) {
        const edge = { stroke: line.color + "66", width: 0.5 };
        bands.push({ series: [series.length, series.length + 1], fill: line.color + "26" });
        add(line, [line.high, line.low], [edge, edge]);
      }
      add(line, [line.y], [{ stroke: line.color, width: line.joined === false ? 0 : 2, dash: line.dash, spanGaps: o.bars }]);
    });
    return { data: tables.length ? window.uPlot.join(tables) : [[]], series, bands };
  }

  // Which rows of a line get a marker, and where its end is: of the part that is within the axes.
  report.markers = (line, plot, o) => {
    const rows = line.y.map((_, row) => row).filter(row => seen(line.y[row], o.logY) && seen(line.x[row], o.logX)
      && line.x[row] >= plot.scales.x.min && line.x[row] <= plot.scales.x.max);
    const step = rows.length <= DOTTED_UP_TO || o.bars ? 1 : Math.ceil(rows.length / SPARSE);
    return { dots: rows.filter((_, index) => index % step === 0), end: rows[rows.length - 1] };
  };

  // Moves places as little as keeps them `gap` apart, between `low` and `high`; as in mhsh/report/lines.py.
  const spread = (places, gap, low, high) => {
    const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
    const moved = places.slice();
    order.forEach((index, rank) => { if (rank) moved[index] = Math.max(moved[index], moved[order[rank - 1]] + gap); });
    order.reverse().reduce((limit, index) => (moved[index] = Math.max(low, Math.min(moved[index], limit))) - gap, high);
    return moved;
  };

  // The final values beside the ends of the lines, in CSS pixels of the plot; of too many lines those of the lowest.
  report.ends = (plot, lines, o) => {
    if (!o.ends) return [];
    const height = plot.over.clientHeight;
    const found = lines.map(line => ({ line, row: report.markers(line, plot, o).end })).filter(each => each.row !== undefined)
      .map(each => ({ ...each, y: plot.valToPos(each.line.y[each.row], "y"), x: plot.valToPos(each.line.x[each.row], "x") }))
      .filter(each => each.y >= -1 && each.y <= height + 1).sort((a, b) => b.y - a.y).slice(0, Math.min(MOST_ENDS, Math.floor(height / ROW)));
    const places = spread(found.map(each => each.y), ROW, ROW / 2, height - ROW / 2);
    return found.map((each, index) => ({ ...each, at: places[index], text: o.endText(each.line, each.line.y[each.row]) }));
  };

  function drawReferences(u, o) {
    const context = u.ctx, ratio = devicePixelRatio;
    context.save();
    context.strokeStyle = "#7F7F7F";
    context.lineWidth = 1.5 * ratio;
    context.setLineDash([3 * ratio, 4 * ratio]);
    o.references.map(each => u.valToPos(each.value, "y", true)).filter(y => y >= u.bbox.top && y <= u.bbox.top + u.bbox.height).forEach(y => {
      context.stroke(new Path2D(`M${u.bbox.left} ${y}H${u.bbox.left + u.bbox.width}`));
    });
    context.restore();
  }

  function drawMarks(u, lines, o) {
    const context = u.ctx, ratio = devicePixelRatio, size = o.bars ? 1 : 0.6, paper = style("--paper");
    const at = (line, row, column) => [u.valToPos(line.x[row], "x", true), u.valToPos(line[column][row], "y", true)];
    context.save();
    context.beginPath();
    context.rect(u.bbox.left - 6 * ratio, u.bbox.top - 6 * ratio, u.bbox.width + 12 * ratio, u.bbox.height + 12 * ratio);
    context.clip();
    context.setLineDash([]);
    lines.forEach(line => {
      const shape = new Path2D(line.marker);
      report.markers(line, u, o).dots.forEach(row => {
        context.save();
        Object.assign(context, { fillStyle: line.color, strokeStyle: line.color, lineWidth: 1.2 * ratio });
        if (o.bars && seen(line.low[row], o.logY)) {
          const [[x, low], [, high]] = [at(line, row, "low"), at(line, row, "high")];
          const cap = 3 * ratio;
          context.stroke(new Path2D(`M${x} ${low}V${high}M${x - cap} ${low}h${2 * cap}M${x - cap} ${high}h${2 * cap}`));
        }
        context.translate(...at(line, row, "y"));
        context.scale(size * ratio, size * ratio);
        const hollow = line.hollow && line.hollow[row];
        if (hollow) context.fillStyle = paper;
        context.fill(shape);
        if (hollow) context.stroke(shape);
        context.restore();
      });
      context.fillStyle = line.color;
      context.font = `700 ${18 * ratio}px ${FONT}`;
      line.gaps.filter(x => x >= u.scales.x.min && x <= u.scales.x.max).forEach(x => {
        context.fillText("\u00d7", u.valToPos(x, "x", true) - 5 * ratio, u.bbox.top + 14 * ratio);
      });
    });
    context.restore();
    context.save();
    context.font = `600 ${12 * ratio}px ${FONT}`;
    Object.assign(context, { textBaseline: "middle", textAlign: "left" });
    context.setLineDash([]);
    report.ends(u, lines, o).forEach(end => {
      const [x, y, at] = [u.bbox.left + end.x * ratio, u.bbox.top + end.y * ratio, u.bbox.top + end.at * ratio];
      const right = u.bbox.left + u.bbox.width + 12 * ratio, mark = new Path2D();
      mark.addPath(new Path2D(end.line.marker), new DOMMatrix([0.7 * ratio, 0, 0, 0.7 * ratio, right, at]));
      Object.assign(context, { fillStyle: end.line.color, strokeStyle: end.line.color, lineWidth: ratio });
      context.stroke(new Path2D(`M${x} ${y}L${right} ${at}`));
      context.fill(mark);
      context.fillStyle = ink();
      context.fillText(end.text, right + 7 * ratio, at);
    });
    context.restore();
  }

  function axesOf(o) {
    const grid = { stroke: "rgba(128,128,128,0.25)", width: 1 };
    const common = { stroke: ink, grid, ticks: grid, font: `12px ${FONT}`, labelFont: `13px ${FONT}`, labelGap: 2 };
    const numbers = (_, splits) => splits.map(value => value === null ? "" : report.number(value, 4));
    const ticks = o.ticks.length ? { splits: () => o.ticks.map(tick => tick[0]), filter: (_, splits) => splits, values: () => o.ticks.map(tick => tick[1]) } : {};
    return [
      { ...common, label: o.xTitle, values: numbers, labelSize: 22, size: 30, ...ticks },
      { ...common, label: o.yTitle, values: numbers, labelSize: 22, size: 54 },
    ];
  }

  const nearestRow = (x, at) => {
    let low = 0, high = x.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < at) low = middle + 1; else high = middle;
    }
    return low > 0 && at - x[low - 1] < x[low] - at ? low - 1 : low;
  };

  // Every line's value near a place, the largest first.
  report.valuesAt = (plot, lines, left) => lines.map(line => {
    const row = nearestRow(line.x, plot.posToVal(left, "x"));
    return { line, row, x: line.x[row], value: line.y[row], away: Math.abs(plot.valToPos(line.x[row], "x") - left) };
  }).filter(each => each.value !== null && each.away <= 16).sort((a, b) => b.value - a.value);

  function read(u, place, lines, o) {
    const reading = place.querySelector("output"), left = u.cursor.left;
    const found = left >= 0 ? report.valuesAt(u, lines, left) : [];
    reading.hidden = !found.length;
    if (!found.length) return;
    const away = each => Math.abs(u.valToPos(each.value, "y") - u.cursor.top);
    const near = found.slice().sort((a, b) => away(a) - away(b)), kept = new Set(near.slice(0, MOST_READ));
    const table = document.createElement("table");
    found.filter(each => kept.has(each)).forEach(each => {
      const { line, row } = each, low = line.low && line.low[row];
      const interval = seen(low) ? ` (${o.valueText(low)} to ${o.valueText(line.high[row])})` : "";
      const cells = table.insertRow();
      cells.classList.toggle("nearest", each === near[0] && found.length > 1);
      cells.insertCell().append(report.swatch(line));
      cells.insertCell().textContent = line.name + (line.labels && line.labels[row] ? ": " + line.labels[row] : "");
      cells.insertCell().textContent = o.valueText(each.value) + interval;
    });
    const head = document.createElement("strong");
    head.textContent = o.placeText(near[0].x) + " \u2014 " + o.yTitle;
    reading.replaceChildren(head, table, found.length > kept.size ? `and ${found.length - kept.size} lines further away` : "");
    const right = left > u.over.clientWidth / 2;
    reading.style.left = right ? "" : u.over.offsetLeft + left + 16 + "px";
    reading.style.right = right ? place.clientWidth - u.over.offsetLeft - left + 16 + "px" : "";
  }

  // A box over the plot zooms in both directions, a flat one in x alone, a narrow one in y alone.
  function zoomed(u, place) {
    const { left, top, width, height } = u.select;
    if (width < 3 || height < 3) return;
    const x = width < u.over.clientWidth - 1 ? [left, left + width].map(at => u.posToVal(at, "x")) : null;
    const y = height < u.over.clientHeight - 1 ? [top + height, top].map(at => u.posToVal(at, "y")) : null;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    place.dispatchEvent(new CustomEvent("zoom", { detail: { x, y }, bubbles: true }));
  }

  // Draws `lines` into `place` in place of what was there. `o` are the options that page.js names.
  report.plot = (place, lines, o) => {
    if (place.chart) place.chart.plot.destroy();
    const made = assemble(lines, o);
    const own = report.extent(lines, ["x"], o.logX, null);
    const xRange = o.x || (o.bars ? roomy(own, o.logX, 0.06) : own || (o.logX ? [1, 10] : [0, 1]));
    const inside = line => line.y.filter((value, row) => seen(value, o.logY) && line.x[row] >= xRange[0] && line.x[row] <= xRange[1]);
    // Of curves the lines alone set the range, and wide bands are clipped; bars are shown in full.
    const fitted = o.fit && Math.max(...lines.map(line => line.x.length)) > SHORT ? [xRange[0] + START * (xRange[1] - xRange[0]), xRange[1]] : xRange;
    const yRange = o.y || roomy(report.extent([...lines, ...o.within], o.bars ? ["y", "low", "high"] : ["y"], o.logY, fitted), o.logY, 0.06);
    const ruler = document.createElement("canvas").getContext("2d");
    ruler.font = `600 12px ${FONT}`;
    const texts = o.ends ? lines.filter(line => inside(line).length).map(line => o.endText(line, inside(line).pop())) : [];
    const right = Math.min(0.4 * place.clientWidth, 26 + Math.max(0, ...texts.map(text => ruler.measureText(text).width)));
    const plot = new window.uPlot({
      width: place.clientWidth,
      height: place.clientHeight,
      padding: [10, o.ends ? right : 16, 0, 0],
      legend: { show: false },
      cursor: {
        points: { show: false },
        drag: { x: o.zooms, y: o.zooms, uni: 24, setScale: false },
        ...(o.sync ? { sync: { key: o.sync, scales: ["x", null], filters: { pub: type => type.startsWith("mouse") && !/down|up/.test(type) } } } : {}),
      },
      scales: {
        x: { time: false, distr: o.logX ? 3 : 1, range: () => xRange },
        y: { distr: o.logY ? 3 : 1, range: () => yRange },
      },
      axes: axesOf(o),
      series: made.series,
      bands: made.bands,
      hooks: {
        drawAxes: [u => drawReferences(u, o)],
        draw: [u => drawMarks(u, lines, o)],
        setCursor: [u => read(u, place, lines, o)],
        setSelect: [u => zoomed(u, place)],
      },
    }, made.data, place);
    plot.over.addEventListener("dblclick", () => place.dispatchEvent(new CustomEvent("zoom", { detail: null, bubbles: true })));
    place.chart = { plot, lines, o, yRange };
    if (!place.watched) resizes.observe(place);
    place.watched = true;
  };

  const resizes = new ResizeObserver(entries => entries.forEach(({ target }) => {
    const plot = target.chart.plot;
    if (target.clientWidth && target.clientWidth !== plot.width) plot.setSize({ width: target.clientWidth, height: target.clientHeight });
  }));

  // A piece of a line for legends, as parts.html draws it.
  report.swatch = line => {
    const space = "http://www.w3.org/2000/svg";
    const make = (name, values) => {
      const element = document.createElementNS(space, name);
      Object.entries(values).forEach(([key, value]) => element.setAttribute(key, value));
      return element;
    };
    const svg = make("svg", { class: "swatch", width: 36, height: 14, viewBox: "-18 -7 36 14", "aria-hidden": "true" });
    svg.append(make("path", { d: "M-18 0H18", fill: "none", stroke: line.color, "stroke-width": 2, "stroke-dasharray": line.dash.join(" ") || "none" }));
    if (line.marker) svg.append(make("path", { d: line.marker, fill: line.color }));
    return svg;
  };

  const moveCursor = (plot, by) => {
    const width = plot.over.clientWidth, { left, top } = plot.cursor;
    plot.setCursor({ left: Math.min(width, Math.max(0, (left >= 0 ? left : 0) + by * width)), top: top >= 0 ? top : plot.over.clientHeight / 2 });
  };

  const scaled = (plot, factor) => {
    const { min, max } = plot.scales.x;
    const at = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : (min + max) / 2;
    return { x: [at - (at - min) * factor, at + (max - at) * factor], y: null };
  };

  const KEYS = {
    ArrowLeft: plot => moveCursor(plot, -0.01),
    ArrowRight: plot => moveCursor(plot, 0.01),
    Home: plot => moveCursor(plot, -1),
    End: plot => moveCursor(plot, 1),
    "+": plot => scaled(plot, 0.5),
    "-": plot => scaled(plot, 2),
    Escape: () => null,
  };
  document.addEventListener("keydown", event => {
    const place = event.target.closest(".plot");
    if (!place || !place.chart || !(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const detail = KEYS[event.key](place.chart.plot);
    if (detail !== undefined) place.dispatchEvent(new CustomEvent("zoom", { detail, bubbles: true }));
  });
})(window.report);
