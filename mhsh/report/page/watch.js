// Keeps a served report fresh: asks its server for what changed, and puts it in place without moving the reader.
"use strict";
(function () {
  const EVERY_MS = 2000;
  const live = document.getElementById("live");
  const shown = {};
  let pieces = {};
  let tag = null;

  function focusable(part) {
    return Array.from(part.querySelectorAll("input, select, button, summary, a, [tabindex]"));
  }

  // What the reader has done to a part, but for the switches, which the page's address holds.
  function readingOf(part) {
    return {
      open: new Set(Array.from(part.querySelectorAll("details[open]"), function (details) { return details.id; })),
      left: Array.from(part.querySelectorAll(".scroll"), function (box) { return box.scrollLeft; }),
      focus: focusable(part).indexOf(document.activeElement),
    };
  }

  function restore(part, reading) {
    part.querySelectorAll("details").forEach(function (details) { details.open = reading.open.has(details.id); });
    part.querySelectorAll(".scroll").forEach(function (box, index) { box.scrollLeft = reading.left[index] || 0; });
    if (reading.focus >= 0) (focusable(part)[reading.focus] || document.body).focus({ preventScroll: true });
  }

  // An answer holds the pieces that differ from those of the tag that was sent.
  function take(update) {
    pieces = Object.fromEntries(update.names.map(function (name) { return [name, name in update.pieces ? update.pieces[name] : pieces[name]]; }));
    const content = { runs: [] };
    Object.entries(pieces).forEach(function ([name, value]) {
      const space = name.indexOf(" ");
      const [kind, key] = space < 0 ? [name, ""] : [name.slice(0, space), name.slice(space + 1)];
      if (kind === "title") document.title = value;
      else if (kind === "part") show(key, value);
      else if (kind === "run") content.runs[Number(key)] = value;
      else content[key] = value;
    });
    document.dispatchEvent(new CustomEvent("report-content", { detail: content }));
  }

  function show(place, html) {
    if (shown[place] === html) return;
    shown[place] = html;
    const part = document.getElementById(place);
    const reading = readingOf(part);
    part.innerHTML = html;
    restore(part, reading);
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
