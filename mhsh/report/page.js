// The switches of report.html: which x-axis, which split, which scale. All data come from the page itself.
"use strict";
(function () {
  const content = JSON.parse(document.getElementById("content").textContent);
  const place = document.getElementById("curves");
  const controls = document.getElementById("controls");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function checked(name) {
    const input = controls.querySelector('input[name="' + name + '"]:checked');
    return input ? input.value : null;
  }

  function view() {
    const logY = checked("log-y") !== null;
    return { axis: checked("axis"), split: checked("split"), smooth: checked("smooth") !== null, logY: logY, close: checked("close") !== null };
  }

  // The lowest and the highest loss in the last half of the shown curves: what a close-up of the end has to hold.
  function endRange(state, visible) {
    const shown = content.traces.filter(function (trace, index) { return visible[index] && place.data[index].yaxis !== "y2"; });
    let last = 0;
    shown.forEach(function (trace) { trace.x[state.axis].forEach(function (x) { if (x > last) last = x; }); });
    const ends = [];
    shown.forEach(function (trace) {
      (state.smooth ? trace.smooth : trace.loss).forEach(function (value, row) {
        if (value !== null && trace.x[state.axis][row] >= last / 2) ends.push(value);
      });
    });
    if (!ends.length) return null;
    const low = ends.reduce(function (a, b) { return Math.min(a, b); });
    const high = ends.reduce(function (a, b) { return Math.max(a, b); });
    const room = 0.05 * (high - low) || 0.05;
    return [low - room, high + room];
  }

  function show() {
    const state = view();
    const ink = getComputedStyle(document.body).color;
    const runs = new Set(Array.from(controls.querySelectorAll('input[name="run"]:checked'), function (input) { return Number(input.value); }));
    const update = { x: [], y: [], visible: [] };
    content.traces.forEach(function (trace) {
      update.x.push(trace.x[state.axis]);
      update.y.push(state.smooth ? trace.smooth : trace.loss);
      update.visible.push(trace.split === state.split && runs.has(trace.run));
    });
    const range = state.close ? endRange(state, update.visible) : null;
    const layout = {
      "font.color": ink,
      "xaxis.title.text": content.axisTitles[state.axis],
      "xaxis.autorange": true,
      "yaxis.type": state.logY ? "log" : "linear",
    };
    (place.layout.shapes || []).forEach(function (shape, index) { layout["shapes[" + index + "].label.font.color"] = ink; });
    if (range && range[0] > 0) {
      layout["yaxis.autorange"] = false;
      layout["yaxis.range"] = state.logY ? range.map(Math.log10) : range;
    } else {
      layout["yaxis.autorange"] = true;
    }
    return window.Plotly.update(place, update, layout);
  }

  // plotly 7 offers to upload the figure to its makers' server unless it is told not to.
  const settings = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };
  window.Plotly.newPlot(place, content.figure.data, content.figure.layout, settings).then(show).then(function () {
    controls.hidden = false;
    controls.addEventListener("change", show);
    dark.addEventListener("change", show);
    place.dataset.ready = "true";
  });
})();
