// The switches of report.html: which view, x-axis, split and scales. All data come from the page itself.
"use strict";
(function () {
  let content = JSON.parse(document.getElementById("content").textContent);
  const place = document.getElementById("curves");
  const controls = document.getElementById("controls");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function checked(name) {
    return Array.from(controls.querySelectorAll('input[name="' + name + '"]:checked'), function (input) { return input.value; });
  }

  function readSwitches() {
    const view = checked("view")[0] || "runs";
    return {
      view: view,
      axis: checked("axis")[0],
      split: checked("split")[0],
      smooth: checked("smooth").length > 0,
      logX: checked("log-x").length > 0,
      logY: checked("log-y").length > 0,
      close: checked("close").length > 0,
      members: new Set(checked(view).map(Number)),
    };
  }

  function losses(trace, state) {
    if (trace.view === "groups") return trace.y[state.axis];
    return (state.smooth && trace.y.smooth) || trace.y.raw;
  }

  // The outline of a band: along its upper edge and back along its lower one, once for each stretch between gaps.
  function outline(line, state) {
    const x = line.x[state.axis], low = line.low[state.axis], high = line.high[state.axis];
    const shape = { x: [], y: [] };
    let start = 0;
    for (let end = 0; end <= x.length; end++) {
      if (end < x.length && low[end] !== null) continue;
      if (end > start) {
        shape.x.push(...x.slice(start, end), ...x.slice(start, end).reverse(), x[start], null);
        shape.y.push(...high.slice(start, end), ...low.slice(start, end).reverse(), high[start], null);
      }
      start = end + 1;
    }
    return shape;
  }

  function lastPoint(line, state) {
    const x = line.x[state.axis], y = losses(line, state);
    let row = y.length - 1;
    while (row >= 0 && (y[row] === null || x[row] === null)) row--;
    return row < 0 ? { x: [], y: [] } : { x: [x[row]], y: [y[row]] };
  }

  function drawn(trace, state) {
    if (trace.part === "band") return outline(content.traces[trace.line], state);
    if (trace.part === "sign") return lastPoint(content.traces[trace.line], state);
    const values = { x: trace.x[state.axis], y: losses(trace, state) };
    if (trace.low) {
      values.text = trace.low[state.axis].map(function (low, row) {
        return low === null ? "" : " (" + low.toFixed(4) + " to " + trace.high[state.axis][row].toFixed(4) + ")";
      });
    }
    return values;
  }

  // What a close-up of the end has to hold: the last half of the longest shown curve, and every loss within it.
  function endRanges(data) {
    const shown = data.filter(function (trace) { return trace.visible && trace.yaxis !== "y2"; });
    let last = 0, low = Infinity, high = -Infinity;
    shown.forEach(function (trace) { trace.x.forEach(function (x) { if (x > last) last = x; }); });
    shown.forEach(function (trace) {
      trace.y.forEach(function (value, row) {
        if (value === null || trace.x[row] < last / 2) return;
        if (value < low) low = value;
        if (value > high) high = value;
      });
    });
    if (low > high) return null;
    const room = 0.05 * (high - low) || 0.05;
    return { x: [last / 2, 1.02 * last], y: [low - room, high + room] };
  }

  function layoutOf(state, data) {
    const ink = getComputedStyle(document.body).color;
    const layout = structuredClone(content.figure.layout);
    layout.font.color = ink;
    layout.shapes.forEach(function (shape) { shape.label.font.color = ink; });
    layout.xaxis.title.text = content.axisTitles[state.axis];
    layout.xaxis.type = state.logX ? "log" : "linear";
    layout.yaxis.type = state.logY ? "log" : "linear";
    const end = state.close ? endRanges(data) : null;
    if (end) {
      layout.xaxis.range = state.logX ? end.x.map(Math.log10) : end.x;
      if (end.y[0] > 0 || !state.logY) layout.yaxis.range = state.logY ? end.y.map(Math.log10) : end.y;
    }
    // Where the reader has zoomed to stays until the axis it was zoomed on is another one.
    layout.xaxis.uirevision = [state.axis, state.logX, state.close].join();
    layout.yaxis.uirevision = [state.split, state.logY, state.close].join();
    return layout;
  }

  // plotly 7 offers to upload the figure to its makers' server unless it is told not to.
  const settings = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };

  function show() {
    const state = readSwitches();
    controls.querySelectorAll("[data-view]").forEach(function (legend) { legend.hidden = legend.dataset.view !== state.view; });
    const data = content.figure.data.map(function (trace, index) {
      const own = content.traces[index];
      const visible = own.view === state.view && own.split === state.split && state.members.has(own.member);
      // What is not seen is not drawn: twenty long runs are many points.
      return Object.assign({}, trace, visible ? drawn(own, state) : { x: [], y: [] }, { visible: visible });
    });
    return window.Plotly.react(place, data, layoutOf(state, data), settings);
  }

  place.classList.add("drawn");
  show().then(function () {
    controls.hidden = false;
    controls.addEventListener("change", show);
    dark.addEventListener("change", show);
    document.addEventListener("report-content", function (event) {
      content = event.detail;
      show();
    });
    place.dataset.ready = "true";
  });
})();
