// Keeps a served report fresh: asks its server whether something changed, and puts it in place without moving the reader.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const live = document.getElementById("live"), shown = {};
  let tag = null;
  const all = (part, what) => Array.from(part.querySelectorAll(what));
  const focusable = part => all(part, "input, select, button, summary, a, [tabindex]");

  // Replaces a part, but keeps what the reader has opened, scrolled and focused. The page's address holds the switches.
  function show(place, html) {
    if (shown[place] === html) return;
    shown[place] = html;
    const part = document.getElementById(place);
    const open = new Set(all(part, "details[open]").map(details => details.id));
    const scrolled = all(part, ".scroll").map(box => [box.scrollLeft, box.scrollTop]);
    const focus = focusable(part).indexOf(document.activeElement);
    part.innerHTML = html;
    all(part, "details").forEach(details => { details.open = open.has(details.id); });
    all(part, ".scroll").forEach((box, index) => box.scrollTo(...(scrolled[index] || [0, 0])));
    if (focus >= 0) (focusable(part)[focus] || document.body).focus({ preventScroll: true });
  }

  function take(page) {
    const parts = all(page, "[data-part]");
    // The first rows of the runs bring parts that the page does not have yet.
    if (!parts.every(part => document.getElementById(part.id))) return location.reload();
    document.title = page.title;
    parts.forEach(part => show(part.id, part.innerHTML));
    document.dispatchEvent(new CustomEvent("report-content", { detail: JSON.parse(page.getElementById("content").textContent) }));
  }

  async function ask() {
    try {
      const answer = await fetch("/", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        take(new DOMParser().parseFromString(await answer.text(), "text/html"));
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
