// Progressive enhancement: the page works without this script. No untrusted text becomes code or markup here.
"use strict";

// Buttons that copy the text of another element.
const bind = (within) => {
  for (const button of within.querySelectorAll("button[data-copies]")) {
    const words = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copies).textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(document.getElementById(button.dataset.copies));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => { button.textContent = words; }, 2000);
    });
  }
};

// Convert UTC times to local time.
const local = (within) => {
  for (const each of within.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    each.title = each.textContent;
    each.textContent = moment.toLocaleString([], "day" in each.dataset ? { dateStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" });
  }
};

// Replace the results by HTML from the server.
const put = (results, html) => {
  const made = new DOMParser().parseFromString(html, "text/html");
  results.replaceChildren(...made.body.childNodes);
  bind(results);
  local(results);
};
// Return a function that runs `work` once at a time, and once more after it if it was called meanwhile (coalescing).
const coalesced = (work) => {
  let running = false;
  let again = false;
  return async function run() {
    if (running) { again = true; return; }
    running = true;
    await work();
    running = false;
    if (again) { again = false; run(); }
  };
};
bind(document);
local(document);

(() => {
  // Filter as you type: the server searches, and its rows replace the shown ones.
  const form = document.getElementById("search");
  const results = document.getElementById("results");
  if (form && results) {
    let shown = new URLSearchParams(new FormData(form)).toString();

    const ask = coalesced(async () => {
      const fields = new URLSearchParams();
      for (const [name, value] of new FormData(form)) if (value) fields.set(name, value);
      const now = fields.toString();
      if (now === shown) return;
      shown = now;
      const given = new URLSearchParams(fields);
      given.set("part", "1");
      try {
        const answer = await fetch(`${form.action}?${given}`, { redirect: "manual" });
        if (!answer.ok) { form.submit(); return; }
        put(results, await answer.text());
        history.replaceState(null, "", now ? `${form.action}?${now}` : form.action);
      } catch {
        form.submit();
      }
    });
    form.addEventListener("input", ask);
    form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input, textarea, select");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        document.getElementById("q").focus();
      }
    });
  }
})();

// Live parts: a server-sent event announces a change, and the page fetches it. A hidden tab closes its stream, since
// a browser limits the connections to a server across tabs.
(() => {
  const state = document.querySelector("[data-follows]");
  if (!state || !("EventSource" in window)) return;
  const results = document.getElementById(state.dataset.results);
  const quiet = "quiet" in state.dataset;
  const say = (words) => { if (state.textContent !== words) state.textContent = words; };
  let source = null;
  let isLost = false;

  const show = coalesced(async () => {
    const asked = location.search;
    const fields = new URLSearchParams(asked);
    fields.set("part", "1");
    try {
      const answer = await fetch(`${location.pathname}?${fields}`, { redirect: "manual" });
      const gone = document.getElementById("gone");
      if (gone) gone.hidden = answer.status !== 404;
      if (answer.status === 404 && gone) return;
      if (answer.status === 503) { setTimeout(show, 1000); return; }  // files are being read or changed
      if (!answer.ok) { say("You are signed out, or may not see this any more. Reload the page."); source.close(); return; }
      const at = document.activeElement;
      if (results.contains(at) && at.matches("input, textarea, select")) {
        say("This page has changed. Reload it to see the changes.");
        return;
      }
      const known = new Set([...results.querySelectorAll("[id]")].map((each) => each.id));
      const unfolded = [...results.querySelectorAll("details")].map((each) => each.open);
      const html = await answer.text();
      if (location.search !== asked) { show(); return; }  // a newer search is shown
      put(results, html);
      const focused = [...results.querySelectorAll(at.localName)].find((each) => each.outerHTML === at.outerHTML);
      if (focused && !at.isConnected) focused.focus({ preventScroll: true });
      const folds = results.querySelectorAll("details");
      if (folds.length === unfolded.length) folds.forEach((each, place) => { each.open = unfolded[place]; });
      if (quiet) { say(""); return; }
      for (const each of results.querySelectorAll("[id]")) if (!known.has(each.id)) each.classList.add("flash");
      const last = results.querySelector(".flash");
      if (last) say(`Last change: ${last.textContent.trim().replace(/\s+/g, " ")}`);
    } catch { /* the stream reports when the server is back */ }
  });
  const follow = () => {
    const address = new URL(state.dataset.follows, location);
    address.searchParams.set("after", results.querySelector("[data-number]").dataset.number);
    source = new EventSource(address);
    source.addEventListener("open", () => {
      say(quiet ? "" : "Changes appear here as they happen.");
      if (isLost) { isLost = false; show(); }  // a restarted server does not announce what changed before
    });
    source.addEventListener("change", show);
    source.addEventListener("error", () => {
      isLost = true;
      say(source.readyState === EventSource.CLOSED
        ? "Updates have stopped. Reload the page."
        : "The connection is lost; trying again.");
    });
  };
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) { show(); follow(); }
  });
  follow();
})();

// On a narrow screen the filters start folded, unless one is set.
(() => {
  const filters = document.querySelector("details.filters");
  if (filters && matchMedia("(max-width: 40rem)").matches && !("used" in filters.dataset)) filters.open = false;
})();
