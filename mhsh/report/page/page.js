// Puts the page together: switches, search and legend change the plots, the table of runs and the page's address.
"use strict";
(report => {
  const form = document.getElementById("switches"), curves = document.getElementById("curves"), legend = document.getElementById("legend");
  report.content = JSON.parse(document.getElementById("content").textContent);

  // The switches are a form's fields, and the same in the page's address, so that a view can be sent.
  const fields = () => Array.from(form.elements).filter(field => field.name);
  const isBox = field => field.type === "checkbox";
  const key = field => field.name === "metric" ? "metric." + field.value : field.name;
  const value = field => isBox(field) ? (field.checked ? "1" : "0") : field.value;
  const usual = field => {
    if (isBox(field)) return field.defaultChecked ? "1" : "0";
    if (field.tagName !== "SELECT") return field.defaultValue;
    return (Array.from(field.options).find(option => option.defaultSelected) || field.options[0]).value;
  };
  const setField = (name, text) => { form.elements[name].value = text; };
  const ends = () => Array.from(document.querySelectorAll("[data-end]")); // of the y-axis of the first plot
  const folds = () => Array.from(document.querySelectorAll("details[id]"));

  // What differs from how the page opens, as in #metric.grad_norm=1&log-y=1.
  function writeAddress() {
    const told = new URLSearchParams();
    fields().forEach(field => { if (value(field) !== usual(field)) told.set(key(field), value(field)); });
    const open = folds().filter(fold => fold.open !== fold.hasAttribute("data-open")).map(fold => fold.id);
    if (open.length) told.set("turned", open.join());
    const hash = told.toString() ? "#" + told : "";
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  }

  function readAddress() {
    const told = new URLSearchParams(location.hash.slice(1));
    fields().forEach(field => {
      const wanted = told.has(key(field)) ? told.get(key(field)) : usual(field);
      if (isBox(field)) field.checked = wanted === "1";
      else if (field.tagName !== "SELECT" || Array.from(field.options).some(option => option.value === wanted)) field.value = wanted;
    });
    const turned = new Set((told.get("turned") || "").split(","));
    folds().forEach(fold => { if (turned.has(fold.id)) fold.open = !fold.hasAttribute("data-open"); });
  }

  // `2,3` as a range; null if it is none.
  const range = text => {
    const ends = (text || "").split(",").map(Number);
    return text && ends.length === 2 && ends.every(Number.isFinite) && ends[0] < ends[1] ? ends : null;
  };
  const told = pairs => pairs.map(each => Number(each.toPrecision(6))).join();

  report.state = () => {
    const all = fields();
    const one = Object.fromEntries(all.map(field => [field.name, value(field)]));
    const metrics = all.filter(field => field.name === "metric" && field.checked).map(field => field.value);
    return {
      metrics: metrics.length ? metrics : [Object.keys(report.content.metrics)[0]],
      axis: one.axis, split: one.split, view: one.view, by: one.by, query: one.search.trim(), smoothing: Number(one.smoothing),
      hidden: new Set(one.hide.split(",").filter(Boolean).map(Number)),
      raw: one.raw === "1", fit: one.fit === "1", logX: one["log-x"] === "1", logY: one["log-y"] === "1" && one.view !== "difference",
      x: range(one.x), y: Object.fromEntries(one.y.split(";").map(each => each.split(":")).map(([metric, ends]) => [metric, range(ends)])),
    };
  };

  const matching = state => new Set(report.content.runs.map((_, run) => run).filter(run => report.matches(run, state.query)));

  // What the legend lists: groups or single runs, each with the runs that its box shows or hides; and the references.
  report.legend = () => {
    const state = report.state(), content = report.content, found = matching(state);
    const entries = report.partition(state.view === "difference" ? "" : state.by).flatMap((part, index) => {
      const runs = part.runs.filter(run => found.has(run)), style = content.styles[index];
      if (state.view !== "runs") return runs.length ? [{ ...style, name: part.name, unequal: part.unequal, runs }] : [];
      return runs.map(run => ({ ...content.styles[run], color: style.color, name: report.runName(run, state.by), unequal: part.unequal, runs: [run] }));
    });
    const marks = references(state, state.metrics).map(each => ({ name: each.label, color: "#7F7F7F", dash: [3, 4], marker: "" }));
    return [...entries.map(entry => ({ ...entry, shown: entry.runs.some(run => !state.hidden.has(run)) })), ...marks.map(mark => ({ ...mark, shown: true }))];
  };

  const references = (state, metrics) => state.view === "difference" ? [] : report.content.references.filter(each => metrics.includes(each.metric));

  function legendEntry(entry) {
    const label = document.createElement(entry.runs ? "label" : "span");
    label.title = entry.name + (entry.unequal ? "; not comparable: " + entry.unequal : "");
    if (entry.runs) {
      const box = document.createElement("input");
      Object.assign(box, { type: "checkbox", checked: entry.shown });
      box.addEventListener("change", () => {
        const { hidden } = report.state();
        entry.runs.forEach(run => box.checked ? hidden.delete(run) : hidden.add(run));
        hide(hidden);
      });
      label.append(box, " ");
    }
    const sign = document.createElement("span");
    sign.className = "sign";
    sign.textContent = entry.unequal ? "\u2260 " : "";
    label.append(report.swatch(entry), sign, short(entry.name, 32));
    return label;
  }

  function showLegend() {
    const focused = Array.from(legend.children).find(label => label.contains(document.activeElement));
    legend.replaceChildren(...report.legend().map(legendEntry));
    const same = focused && Array.from(legend.children).find(label => label.textContent === focused.textContent);
    if (same) same.querySelector("input").focus({ preventScroll: true });
  }

  function newPlot(label) {
    const place = document.createElement("div"), reading = document.createElement("output");
    reading.hidden = true;
    place.className = "plot";
    Object.entries({ tabindex: 0, role: "group", "aria-label": label + ". Arrow keys read the values, + and - zoom, Escape shows the whole." })
      .forEach(([name, text]) => place.setAttribute(name, text));
    place.append(reading);
    return place;
  }

  function options(state, metric, lines, wide) {
    const isDifference = state.view === "difference", sign = each => isDifference && each > 0 ? "+" : "";
    return {
      xTitle: report.content.axes[state.axis], yTitle: report.metricTitle(state, metric), ticks: [], bars: false, zooms: true, sync: "curves",
      logX: state.logX, logY: state.logY, raw: state.raw, fit: state.fit && !state.x, x: state.x, y: state.y[metric] || null,
      references: isDifference ? [{ value: 0 }] : references(state, [metric]), within: isDifference && lines.length ? [{ x: [lines[0].x[lines[0].x.length - 1]], y: [0] }] : [],
      ends: state.split !== "train" || state.smoothing > 0 || state.view !== "runs",
      endText: (line, end) => sign(end) + report.metricNumber(metric, end, 3) + (wide && lines.length <= 14 ? " " + short(line.name, 22) : ""),
      valueText: each => sign(each) + report.metricNumber(metric, each), placeText: at => report.place(state.axis, at),
    };
  }

  // Names differ at their ends, so the middle is left out.
  const short = (name, most) => name.length <= most ? name : name.slice(0, most - 9) + "\u2026" + name.slice(-8);

  function showCurves() {
    const state = report.state(), found = matching(state);
    while (curves.children.length > state.metrics.length) curves.lastChild.remove();
    while (curves.children.length < state.metrics.length) curves.append(newPlot("Curves; their numbers are in the tables"));
    curves.classList.toggle("several", state.metrics.length > 1);
    const drawn = state.metrics.map((metric, index) => {
      const lines = report.lines(state, metric, run => found.has(run) && !state.hidden.has(run));
      const place = curves.children[index];
      place.metric = metric;
      report.plot(place, lines, options(state, metric, lines, place.clientWidth > 640));
      return lines;
    });
    const runs = report.content.runs.length, widths = drawn.flat().map(line => line.rows);
    document.getElementById("found").textContent = found.size < runs ? `${found.size} of ${runs} runs` : `${runs} runs`;
    document.querySelectorAll("[data-run]").forEach(row => { row.hidden = !found.has(Number(row.dataset.run)); });
    const [least, most] = [Math.min(...widths), Math.max(...widths)];
    document.getElementById("smoothing-words").textContent = widths.length && most > 1 ? `mean of ${least === most ? most : least + " to " + most} rows` : "off";
    ["smoothing", "raw"].forEach(name => { form.elements[name].closest("label").hidden = state.split !== "train"; });
    document.getElementById("metrics-words").textContent = state.metrics.map(metric => report.content.metrics[metric].name).join(", ");
    const { yRange } = curves.firstChild.chart;
    ends().forEach((field, index) => {
      field.value = state.y[state.metrics[0]] ? yRange[index] : "";
      field.placeholder = report.number(yRange[index], 3);
    });
    showLegend();
  }

  function showPoints() {
    document.querySelectorAll("[data-points]").forEach(place => {
      const figure = report.content.points[place.dataset.points];
      if (!place.querySelector("output")) place.append(newPlot(figure.title).firstChild);
      const lines = figure.series.map((series, index) => ({
        ...report.content.styles[series.group === null ? index : series.group], name: series.name, joined: series.joined, gaps: [],
        ...Object.fromEntries(["x", "y", "low", "high", "hollow"].map(column => [column, series.points.map(point => point[column])])),
        labels: series.points.map(point => point.label),
      }));
      const tick = at => (figure.ticks.find(each => each[0] === at) || [0, report.number(at, 4)])[1];
      report.plot(place, lines, {
        xTitle: figure.x_title, yTitle: figure.y_title, ticks: figure.ticks, bars: true, zooms: false, logX: figure.log_x, logY: figure.log_y,
        references: figure.references, within: [], x: null, y: null, ends: false, valueText: each => report.number(each, 4), placeText: tick,
      });
    });
  }

  function show() {
    if (curves) showCurves();
    showPoints();
    writeAddress();
  }

  function hide(hidden) {
    setField("hide", Array.from(hidden).sort((a, b) => a - b).join());
    show();
  }

  function zoom(x, y) {
    setField("x", x ? told(x) : "");
    setField("y", Object.entries(y).filter(each => each[1]).map(([metric, ends]) => metric + ":" + told(ends)).join(";"));
    show();
  }

  const lastHalf = () => {
    const end = Math.max(...curves.firstChild.chart.lines.map(line => line.x[line.x.length - 1]));
    return Number.isFinite(end) ? [end / 2, end] : null;
  };
  const save = kind => {
    const state = report.state();
    report.save(kind, [state.split, ...state.metrics, "by", state.axis].join("-"));
  };
  const BUTTONS = {
    all: () => hide(new Set()),
    none: () => hide(matching(report.state())),
    end: () => zoom(lastHalf(), {}),
    whole: () => zoom(null, {}),
    png: () => save("png"),
    svg: () => save("svg"),
  };
  document.addEventListener("input", event => {
    const { form: of, name } = event.target;
    if (of !== form || !name) return;
    if (name === "axis") setField("x", "");
    if (name === "view" || name === "split") setField("y", "");
    show();
  });
  document.addEventListener("change", event => {
    if (!ends().includes(event.target)) return;
    const state = report.state(), { yRange } = curves.firstChild.chart;
    const wanted = ends().map((field, index) => field.value === "" ? yRange[index] : Number(field.value));
    zoom(state.x, { ...state.y, [state.metrics[0]]: ends().every(field => field.value === "") || wanted[0] >= wanted[1] ? null : wanted });
  });
  document.addEventListener("click", event => {
    const button = event.target.closest("button[data-does]");
    if (button) BUTTONS[button.dataset.does]();
  });
  document.addEventListener("zoom", event => {
    if (!event.target.metric) return;
    const state = report.state(), { detail } = event;
    zoom(detail ? detail.x || state.x : null, detail ? { ...state.y, ...(detail.y ? { [event.target.metric]: detail.y } : {}) } : {});
  });
  document.addEventListener("toggle", writeAddress, true);
  addEventListener("hashchange", () => { readAddress(); show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  document.addEventListener("report-content", event => {
    report.content = event.detail;
    readAddress();
    show();
  });

  document.querySelectorAll("[data-scripted]").forEach(part => { part.hidden = false; });
  form.addEventListener("submit", event => event.preventDefault());
  readAddress();
  show();
  document.body.dataset.ready = "true";
})(window.report);
