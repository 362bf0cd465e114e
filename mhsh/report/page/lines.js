// From the report's numbers to the lines of the current view: axes, smoothing, means with intervals, differences of pairs.
"use strict";
window.report = {};
(report => {
  const GRID_POINTS = 500; // of a mean, as in mhsh/report/curves.py
  const SUFFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const UNITS = { step: "step ", tokens: " tokens", flops: " FLOPs", seconds: " s" };

  // A count, a duration or any other number, in at most `digits` digits.
  report.number = (value, digits) => {
    const size = Math.abs(value);
    const [unit, suffix] = (size >= 1e5 && SUFFIXES.find(each => size >= each[0])) || [1, ""];
    const scaled = value / unit;
    if (size !== 0 && size < 1e-4) return scaled.toExponential(digits - 1);
    const decimals = Math.max(0, digits - 1 - Math.max(0, Math.floor(Math.log10(Math.abs(scaled) || 1))));
    return scaled.toLocaleString("en-US", { maximumFractionDigits: size < 0.1 ? decimals + 3 : decimals }) + suffix;
  };
  // Losses have equally many decimals, so that they can be compared; one near 0, or a huge one, has digits instead, as in mhsh/text.py.
  report.metricNumber = (metric, value, decimals = 4) => {
    const size = Math.abs(value), plain = report.content.metrics[metric].unit === "nats per token" && (!size || (size >= 0.0005 && size < 1e6));
    return plain ? value.toFixed(decimals).replace("-", "\u2212") : report.number(value, 4).replace(/^-/, "\u2212");
  };
  report.place = (axis, value) =>
    axis === "step" ? UNITS.step + Math.round(value).toLocaleString("en-US") : report.number(value, 5) + (UNITS[axis] || "");
  report.metricTitle = (state, key) => {
    const metric = report.content.metrics[key];
    const name = `${report.content.splits[state.split]} ${metric.name}${metric.unit ? ", " + metric.unit : ""}`;
    return state.view === "difference" ? "difference in " + name : name;
  };

  // A column of places on an axis. Where they are proportional to the step, the page holds the factor alone.
  const places = (columns, axis) => {
    const x = columns.x[axis];
    return typeof x === "number" ? columns.x.step.map(step => step * x) : x;
  };
  // The mean of each value and the `count` - 1 before it, fewer at the start; a gap if one of them is a gap.
  const runningMean = (values, count) => count <= 1 ? values : values.map((_, row) => {
    const rows = values.slice(Math.max(0, row - count + 1), row + 1);
    // Summed anew for each: a running sum would keep the rounding of a spike for ever.
    return rows.includes(null) ? null : rows.reduce((sum, value) => sum + value, 0) / rows.length;
  });
  // Rows without a place on this axis are left out.
  const line = (x, y, rows) => {
    const kept = x.map((_, row) => row).filter(row => x[row] !== null);
    return { x: kept.map(row => x[row]), y: kept.map(row => y[row]), rows };
  };
  // One run's line: as logged or smoothed, and the logged values to stand faintly behind a smoothed one.
  const runLine = (curve, state, key) => {
    const raw = line(places(curve.rows, state.axis), curve.rows.y[key], 1);
    if (state.split !== "train" || !state.smoothing || !report.content.metrics[key].smooth) return raw;
    const wanted = state.smoothing * curve.window;
    const full = () => line(places(curve.rows, state.axis), runningMean(curve.rows.y[key], wanted), wanted);
    if (!curve.even) return { ...full(), raw: wanted > 1 ? raw : null };
    const more = Math.max(0, Math.round((wanted - curve.window) / curve.spacing)), smoothed = runningMean(curve.even.y[key], 1 + more);
    return { ...line(places(curve.even, state.axis), smoothed, curve.window + more * curve.spacing), raw };
  };

  // The value of a line at ascending places, linear between its rows; a gap where a neighbour is one.
  const interpolated = (line, grid) => {
    let row = 0;
    return grid.map(at => {
      while (row < line.x.length - 2 && line.x[row + 1] < at) row++;
      const next = Math.min(row + 1, line.x.length - 1);
      const [left, right, low, high] = [line.x[row], line.x[next], line.y[row], line.y[next]];
      if (at === left) return low;
      if (at === right) return high;
      return low === null || high === null ? null : low + ((high - low) * (at - left)) / (right - left);
    });
  };
  const thinned = x => x.length <= GRID_POINTS ? x
    : Array.from({ length: GRID_POINTS }, (_, place) => x[Math.round((place * (x.length - 1)) / (GRID_POINTS - 1))]);
  const within = (lines, x) => {
    const first = Math.max(...lines.map(line => line.x[0])), last = Math.min(...lines.map(line => line.x[line.x.length - 1]));
    return x.filter(at => at >= first && at <= last);
  };
  const ascending = x => Array.from(new Set(x)).sort((a, b) => a - b);

  // The mean of several lines where all of them have rows, with the interval that mhsh/report/curves.py gives.
  const mean = lines => {
    const x = thinned(ascending(lines.flatMap(line => within(lines, line.x))));
    const values = lines.map(line => interpolated(line, x));
    const factor = report.content.half_intervals[lines.length];
    const result = { x, y: [], low: [], high: [], rows: Math.max(...lines.map(line => line.rows)) };
    x.forEach((_, row) => {
      const column = values.map(each => each[row]);
      const average = column.includes(null) ? null : column.reduce((a, b) => a + b, 0) / column.length;
      const squares = column.reduce((sum, value) => sum + (value - average) ** 2, 0);
      const half = average === null || factor === null ? null : factor * Math.sqrt(squares / (column.length - 1));
      result.y.push(average);
      result.low.push(half === null ? null : average - half);
      result.high.push(half === null ? null : average + half);
    });
    return result;
  };
  // One line minus another: at the steps that both logged; interpolated against what has no common places, as FLOPs.
  const difference = (ours, theirs, axis) => {
    const known = new Set(theirs.x);
    const shared = ours.x.filter(at => known.has(at));
    const x = axis === "step" || axis === "tokens" ? shared : within([ours, theirs], ascending([...ours.x, ...theirs.x]));
    const [left, right] = [interpolated(ours, x), interpolated(theirs, x)];
    return { x, y: x.map((_, row) => left[row] === null || right[row] === null ? null : left[row] - right[row]), rows: ours.rows };
  };

  // The runs in parts: groups, or those with an equal value of a config field.
  report.partition = field => {
    if (!(field in report.content.fields)) return report.content.groups;
    const parts = new Map();
    report.content.fields[field].forEach((value, run) => {
      if (!parts.has(value)) parts.set(value, { name: field + " = " + value, runs: [], unequal: "", pairs: [], averaged: true });
      parts.get(value).runs.push(run);
    });
    return Array.from(parts.values());
  };

  // A run's name, with its value of the field that gives its colour.
  report.runName = (run, field) =>
    report.content.runs[run].name + (field in report.content.fields ? " (" + report.content.fields[field][run] + ")" : "");
  const gapStarts = (curve, axis) => places(curve.rows, axis).filter((_, row) =>
    curve.rows.y.loss[row] === null && (row === 0 || curve.rows.y.loss[row - 1] !== null));

  // Every line to draw of a metric: its name, style and values. `shows` tells which runs the reader wants to see.
  report.lines = (state, key, shows) => {
    const content = report.content;
    const curve = run => content.runs[run].curves[state.split];
    const logged = run => curve(run) && key in curve(run).rows.y;
    const has = run => shows(run) && logged(run);
    const drawn = run => runLine(curve(run), state, key);
    const lines = [];
    report.partition(state.by).forEach((part, place) => {
      const style = { name: part.name, unequal: part.unequal, gaps: [], raw: null, ...(part.style || content.styles[place]) };
      const runs = part.runs.filter(has);
      if (state.view === "runs" || (state.view === "groups" && !part.averaged)) {
        runs.forEach(run => {
          const gaps = key === "loss" ? gapStarts(curve(run), state.axis) : [];
          const own = state.view === "runs" ? { ...content.runs[run].style, color: style.color } : {};
          lines.push({ ...style, ...own, name: report.runName(run, state.by), gaps, ...drawn(run) });
        });
        return;
      }
      const each = state.view === "groups" ? runs.map(drawn)
        : part.pairs.filter(([run, other]) => has(run) && logged(other)).map(([run, other]) => difference(drawn(run), drawn(other), state.axis));
      const known = each.filter(line => line.x.length > 0);
      if (known.length) lines.push({ ...style, ...mean(known) });
    });
    return lines.filter(line => line.x.length > 0);
  };

  // Whether a run is one that the reader searches for: every word is part of its name, or of `field=value` of a config field, or
  // as `field>number` or `field<number` holds of one.
  report.matches = (run, query) => {
    const fields = Object.entries(report.content.fields).map(([name, values]) => name + "=" + values[run] + " ");
    const text = [report.content.runs[run].name, ...fields].join(" ").toLowerCase();
    const holds = ([, name, sign, bound]) => Object.entries(report.content.fields).some(([field, values]) =>
      field.endsWith(name) && (sign === ">" ? Number(values[run]) > Number(bound) : Number(values[run]) < Number(bound)));
    return query.toLowerCase().split(/\s+/).every(word => {
      const found = /^([^<>]+)([<>])(.+)$/.exec(word);
      return found ? holds(found) : text.includes(word);
    });
  };
})(window.report);
