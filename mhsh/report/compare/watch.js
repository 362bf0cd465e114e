// Keeps a served report fresh: asks its server for what changed, and puts it in place without moving the reader.
"use strict";
(function () {
  const EVERY_MS = 2000;
  const live = document.getElementById("live");
  const shown = {};
  let tag = null;

  // An input's name in words stays the same when a run appears before it and its number does not.
  function key(input) {
    return [input.name, input.type === "radio" ? input.value : input.closest("label").textContent].join("\n");
  }

  function focusable(part) {
    return Array.from(part.querySelectorAll("input, summary, a, [tabindex]"));
  }

  // What the reader has done to a part: switches, open details, how far it is scrolled, where the focus is.
  function readingOf(part) {
    const focus = focusable(part).indexOf(document.activeElement);
    return {
      inputs: new Map(Array.from(part.querySelectorAll("input"), function (input) { return [key(input), input.checked]; })),
      open: Array.from(part.querySelectorAll("details"), function (details) { return details.open; }),
      left: Array.from(part.querySelectorAll(".scroll"), function (box) { return box.scrollLeft; }),
      focus: focus,
      focusedInput: focus >= 0 && document.activeElement.matches("input") ? key(document.activeElement) : null,
    };
  }

  function restore(part, reading) {
    const inputs = Array.from(part.querySelectorAll("input"));
    inputs.forEach(function (input) { if (reading.inputs.has(key(input))) input.checked = reading.inputs.get(key(input)); });
    part.querySelectorAll("details").forEach(function (details, index) { details.open = Boolean(reading.open[index]); });
    part.querySelectorAll(".scroll").forEach(function (box, index) { box.scrollLeft = reading.left[index] || 0; });
    if (reading.focus < 0) return;
    const same = inputs.find(function (input) { return key(input) === reading.focusedInput; });
    (same || focusable(part)[reading.focus] || document.body).focus({ preventScroll: true });
  }

  function take(update) {
    document.title = update.title;
    Object.entries(update.parts).forEach(function ([place, html]) {
      if (shown[place] === html) return;
      shown[place] = html;
      const part = document.getElementById(place);
      const reading = readingOf(part);
      part.innerHTML = html;
      restore(part, reading);
    });
    document.dispatchEvent(new CustomEvent("report-content", { detail: update.content }));
  }

  async function ask() {
    try {
      const answer = await fetch("/update", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        take(await answer.json());
        tag = answer.headers.get("ETag");
        live.textContent = "Live: last change seen at " + new Date().toLocaleTimeString() + ".";
      } else if (answer.status !== 304) {
        live.textContent = "Not refreshed: " + (await answer.text());
        tag = null;
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // fetch's own: no connection
      live.textContent = "Not refreshed: mhsh compare --watch no longer answers. This page shows its last update.";
      tag = null;
    }
    setTimeout(ask, EVERY_MS);
  }

  ask();
})();
