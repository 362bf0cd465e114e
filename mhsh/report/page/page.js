// Puts the page together: switches, search and legend change the plots, the table of runs and the page's address.
"use strict";
(report => {
  const NONE = "None of the runs shown logged this.";
  const [form, curves, legend] = ["switches", "curves", "legend"].map(id => document.getElementById(id));
  report.content = JSON.parse(document.getElementById("content").textContent);

  // The switches are a form's fields, and the same in the page's address, so that a view can be sent.
  const fields = () => Array.from(form.elements).filter(field => field.name);
  const key = field => field.name === "metric" ? "metric." + field.value : field.name;
  const value = field => field.type === "checkbox" ? String(Number(field.checked)) : field.value;
  const usual = field => {
    if (field.type === "checkbox") return String(Number(field.defaultChecked));
    if (field.tagName !== "SELECT") return field.defaultValue;
    return (Array.from(field.options).find(option => option.defaultSelected) || field.options[0]).value;
  };
  const ends = () => Array.from(document.querySelectorAll("[data-end]")); // of the y-axis of the first plot
  const folds = () => Array.from(document.querySelectorAll("details[id]"));

  // What differs from how the page opens, as in #metric.grad_norm=1&log-y=1.
  function writeAddress() {
    const told = new URLSearchParams();
    fields().forEach(field => { if (value(field) !== usual(field)) told.set(key(field), value(field)); });
    const open = folds().filter(fold => fold.open).map(fold => fold.id);
    if (open.length) told.set("open", open.join());
    const hash = told.toString() ? "#" + told : "";
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  }
  function readAddress() {
    const told = new URLSearchParams(location.hash.slice(1));
    fields().forEach(field => {
      const wanted = told.has(key(field)) ? told.get(key(field)) : usual(field);
      if (field.type === "checkbox") field.checked = wanted === "1";
      else if (field.tagName !== "SELECT" || Array.from(field.options).some(option => option.value === wanted)) field.value = wanted;
    });
    const open = new Set((told.get("open") || "").split(","));
    folds().forEach(fold => { if (open.has(fold.id)) fold.open = true; });
  }
  // `2,3` as a range; null if it is none.
  const range = (text, [low, high] = (text || "").split(",").map(Number)) => text && Number.isFinite(high - low) && low < high ? [low, high] : null;

  report.state = () => {
    const all = fields(), one = Object.fromEntries(all.map(field => [field.name, value(field)]));
    const metrics = all.filter(field => field.name === "metric" && field.checked).map(field => field.value);
    return {
      metrics: metrics.length ? metrics : Object.keys(report.content.metrics).slice(0, 1),
      axis: one.axis, split: one.split, view: one.view, by: one.view === "difference" ? "" : one.by, query: one.search.trim(),
      smoothing: Number(one.smoothing), hidden: new Set(one.hide.split(",").filter(Boolean).map(Number)),
      raw: one.raw === "1", fit: one.fit === "1", logX: one["log-x"] === "1", logY: one["log-y"] === "1" && one.view !== "difference",
      x: range(one.x), y: Object.fromEntries(one.y.split(";").map(each => each.split(":")).map(([metric, ends]) => [metric, range(ends)])),
    };
  };

  const matching = state => new Set(report.content.runs.map((_, run) => run).filter(run => report.matches(run, state.query)));
  const references = (state, metrics) => state.view === "difference" ? [{ value: 0, label: "0: " + report.content.baseline }]
    : metrics.includes("loss") ? report.content.references : [];
  // Names differ at their ends, so the middle is left out.
  const short = (name, most) => name.length <= most ? name : name.slice(0, most - 9) + "\u2026" + name.slice(-8);

  // What the legend lists: groups or single runs, each with the runs that its box shows or hides; and the references.
  report.legend = () => {
    const state = report.state(), { styles } = report.content, found = matching(state);
    const entries = report.partition(state.by).flatMap((part, index) => {
      const runs = part.runs.filter(run => found.has(run)), { unequal } = part, style = part.style || styles[index];
      if (state.view === "difference" && !part.pairs.length) return []; // the baseline is the line at 0
      if (state.view !== "runs") return runs.length ? [{ ...style, name: part.name, unequal, runs }] : [];
      return runs.map(run => ({ ...report.content.runs[run].style, color: style.color, name: report.runName(run, state.by), unequal, runs: [run] }));
    });
    entries.forEach(entry => { entry.shown = entry.runs.some(run => !state.hidden.has(run)); });
    return [...entries, ...references(state, state.metrics).map(({ label }) => ({ name: label, color: "#7F7F7F", dash: [3, 4], shown: true }))];
  };

  function legendEntry({ name, unequal, runs, shown, ...style }) {
    const label = document.createElement(runs ? "label" : "span"), sign = document.createElement("span");
    label.title = name + (unequal ? "; not comparable: " + unequal : "");
    if (runs) {
      const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: shown });
      box.addEventListener("change", () => {
        const { hidden } = report.state();
        runs.forEach(run => box.checked ? hidden.delete(run) : hidden.add(run));
        set({ hide: Array.from(hidden).sort((a, b) => a - b).join() });
      });
      label.append(box, " ");
    }
    Object.assign(sign, { className: "sign", textContent: unequal ? "\u2260 " : "" });
    label.append(report.swatch(style), sign, name);
    return label;
  }

  function showLegend() {
    const focused = Array.from(legend.children).find(label => label.contains(document.activeElement));
    legend.replaceChildren(...report.legend().map(legendEntry));
    const same = focused && Array.from(legend.children).find(label => label.title === focused.title);
    if (same) same.querySelector("input").focus({ preventScroll: true });
  }

  function newPlot() {
    const place = Object.assign(document.createElement("div"), { className: "plot", tabIndex: 0, role: "group" });
    place.ariaLabel = "Curves; their numbers are in the tables. Arrow keys read the values, + and - zoom, Escape shows the whole.";
    place.append(Object.assign(document.createElement("output"), { hidden: true }));
    return place;
  }

  function showCurve(place, metric, state, shows) {
    const lines = report.lines(state, metric, shows), isDifference = state.view === "difference";
    const sign = each => isDifference && each > 0 ? "+" : "", isNamed = place.clientWidth > 640 && lines.length <= 14;
    place.metric = metric;
    report.plot(place, lines, {
      xTitle: report.content.axes[state.axis], yTitle: report.metricTitle(state, metric), bars: false,
      logX: state.logX, logY: state.logY, raw: state.raw, fit: state.fit, zero: isDifference, x: state.x, y: state.y[metric] || null,
      references: references(state, [metric]),
      endText: (line, end, isInside) => sign(end) + report.metricNumber(metric, end, 3) + (isNamed && !isInside ? " " + short(line.name, 26) : ""),
      valueText: each => sign(each) + report.metricNumber(metric, each), placeText: at => report.place(state.axis, at),
    });
    const reading = place.querySelector("output");
    if (!lines.length) Object.assign(reading, { hidden: false, textContent: NONE });
    else if (reading.textContent === NONE) reading.hidden = true;
    return lines.map(line => line.rows);
  }

  function showCurves() {
    const state = report.state(), found = matching(state), runs = report.content.runs.length;
    while (curves.children.length > state.metrics.length) curves.lastChild.remove(); // those that stay keep the reader's focus
    while (curves.children.length < state.metrics.length) curves.append(newPlot());
    curves.classList.toggle("several", state.metrics.length > 1);
    const shows = run => found.has(run) && !state.hidden.has(run);
    const widths = state.metrics.flatMap((metric, index) => showCurve(curves.children[index], metric, state, shows));
    const [least, most] = [Math.min(...widths), Math.max(...widths)], yRange = curves.firstChild.chart.o.ranges.y;
    const words = {
      found: found.size < runs ? `${found.size} of ${runs} runs` : `${runs} runs`,
      "smoothing-words": widths.length && most > 1 ? `mean of ${least === most ? most : least + " to " + most} rows` : "off",
      "metrics-words": state.metrics.map(metric => report.content.metrics[metric].name).join(", "),
    };
    Object.entries(words).forEach(([id, text]) => { document.getElementById(id).textContent = text; });
    document.querySelectorAll("[data-run]").forEach(row => { row.hidden = !found.has(Number(row.dataset.run)); });
    ["smoothing", "raw"].forEach(name => { form.elements[name].closest("label").hidden = state.split !== "train"; });
    const texts = index => ({ value: state.y[state.metrics[0]] ? yRange[index] : "", placeholder: report.number(yRange[index], 3) });
    ends().forEach((field, index) => Object.assign(field, texts(index)));
    showLegend();
  }

  function showPoints(place) {
    const figure = report.content.points[place.dataset.points];
    const lines = figure.series.map(series => ({
      ...series, gaps: [],
      ...Object.fromEntries(["x", "y", "low", "high", "label", "is_open"].map(column => [column, series.points.map(point => point[column])])),
    }));
    report.plot(place, lines, {
      xTitle: figure.x_title, yTitle: figure.y_title, bars: true, logX: true, logY: false, references: figure.references,
      x: null, y: null, zero: figure.references.some(each => each.value === 0), valueText: each => report.number(each, 4), placeText: at => report.number(at, 4),
    });
  }

  function show() {
    if (curves) showCurves();
    document.querySelectorAll("[data-points]").forEach(showPoints);
    writeAddress();
  }

  function set(texts) {
    Object.entries(texts).forEach(([name, text]) => { form.elements[name].value = text; });
    show();
  }
  const told = range => range.map(each => Number(each.toPrecision(6))).join();
  const zoom = (x, y) => set({ x: x ? told(x) : "", y: Object.entries(y).flatMap(([metric, range]) => range ? `${metric}:${told(range)}` : []).join(";") });
  const save = (kind, { split, metrics, axis } = report.state()) => report.save(kind, [split, ...metrics, "by", axis].join("-"));
  const BUTTONS = {
    all: () => set({ hide: "" }),
    none: () => set({ hide: Array.from(matching(report.state())).join() }),
    end: () => zoom([0.5, 1].map(share => share * Math.max(...curves.firstChild.chart.lines.map(line => line.x[line.x.length - 1]))), {}),
    whole: () => zoom(null, {}),
    png: () => save("png"),
    svg: () => save("svg"),
  };
  // Sorts the rows below a heading by its column: numbers by the value behind them, what has none last.
  const sorted = new Map(); // by table: the column and its direction, which outlive an update of a page that is watched
  function sortRows(table, column, direction) {
    const bodies = Array.from(table.tBodies), heads = Array.from(table.querySelectorAll(".head"));
    heads.forEach(head => head.querySelectorAll("th").forEach((th, index) => th.ariaSort = index === column ? direction : null));
    const cell = row => row.querySelectorAll("th, td:not(.forest)")[column], sign = direction === "ascending" ? 1 : -1;
    const number = row => "value" in cell(row).dataset ? Number(cell(row).dataset.value) : NaN;
    const compare = (a, b) => {
      const [one, other] = [number(a), number(b)];
      if (isNaN(one) && isNaN(other)) return sign * cell(a).textContent.localeCompare(cell(b).textContent, "en", { numeric: true });
      return isNaN(one) - isNaN(other) || sign * (one - other);
    };
    bodies.forEach(body => body.append(...Array.from(body.rows).filter(row => !row.classList.contains("head")).sort(compare)));
  }
  function sortBy(button) {
    const table = button.closest("table"), column = Number(button.dataset.sort), name = table.parentElement.ariaLabel;
    const direction = button.parentElement.ariaSort === "ascending" ? "descending" : "ascending";
    sorted.set(name, [column, direction]);
    sortRows(table, column, direction);
  }

  // Paper is light and 44rem wide, whatever the screen is.
  const paper = isPaper => () => {
    document.documentElement.classList.toggle("paper", isPaper);
    show();
  };
  const on = (name, act, target = document, capture = false) => target.addEventListener(name, act, capture);
  on("input", ({ target }) => {
    if (target.form !== form || !target.name) return;
    set({ ...(target.name === "axis" ? { x: "" } : {}), ...(["view", "split"].includes(target.name) ? { y: "" } : {}) });
  });
  on("change", ({ target }) => {
    if (!ends().includes(target)) return;
    const state = report.state(), yRange = curves.firstChild.chart.o.ranges.y;
    const wanted = ends().map((field, index) => field.value === "" ? yRange[index] : Number(field.value));
    zoom(state.x, { ...state.y, [state.metrics[0]]: ends().some(field => field.value) && wanted[0] < wanted[1] ? wanted : null });
  });
  on("click", ({ target }) => { if (target.dataset.does) BUTTONS[target.dataset.does](); });
  on("click", ({ target }) => { if (target.dataset.sort) sortBy(target); });
  on("beforeprint", paper(true), window);
  on("afterprint", paper(false), window);
  on("zoom", ({ target: { metric }, detail }) => {
    const { x, y } = metric ? report.state() : {}; // the other figures have none
    if (metric && detail) zoom(detail.x || x, detail.y ? { ...y, [metric]: detail.y } : y);
    else if (metric) zoom(null, {});
  });
  const reread = () => { readAddress(); show(); };
  on("report-content", ({ detail }) => {
    report.content = detail;
    document.querySelectorAll("table").forEach(table => {
      if (sorted.has(table.parentElement.ariaLabel)) sortRows(table, ...sorted.get(table.parentElement.ariaLabel));
    });
    reread();
  });
  on("hashchange", reread, window);
  on("change", show, matchMedia("(prefers-color-scheme: dark)"));
  on("toggle", writeAddress, document, true);
  on("submit", event => event.preventDefault(), form);

  document.querySelectorAll("[data-scripted]").forEach(part => { part.hidden = false; });
  reread();
  document.body.dataset.ready = "true";
})(window.report);
