"use strict";
// Follows a page: it asks again and again for its top, and for the report below, and shows them where they have changed.
(() => {
  const link = document.getElementById("link");
  let ahead = 0; // of the server's clock, in seconds

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  function tell(text, lost) {
    link.textContent = text;
    link.className = lost ? "lost" : "quiet";
  }

  function ago() { // how long ago each worker's last round ended
    const at = Date.now() / 1000 + ahead;
    for (const time of document.querySelectorAll("time[data-since]")) {
      const s = Math.max(0, Math.round(at - Number(time.dataset.since)));
      time.textContent = s < 100 ? `${s} s ago` : s < 6000 ? `${Math.round(s / 60)} min ago` : `${Math.round(s / 3600)} h ago`;
    }
  }

  const plotly = () => new Promise((done, failed) => { // 5 MB, which the first picture does not wait for
    const script = Object.assign(document.createElement("script"), { src: "/static/plotly.js", onload: done, onerror: failed });
    document.head.append(script);
  }).then(() => document.dispatchEvent(new Event("plotly")));

  async function follow(part, every) { // for people who look, and one answer at a time
    const root = document.getElementById(part);
    for (let seen = ""; root; await pause(every)) {
      if (document.hidden) continue;
      try {
        const answer = await fetch(`/${part}${document.body.dataset.address}`, { headers: { "If-None-Match": seen } });
        if (answer.ok || answer.status === 304) tell("live");
        else tell(answer.status === 401 ? "ended: start fedtune watch again and open its address" : await answer.text(), true);
        ahead = (Date.parse(answer.headers.get("Date")) - Date.now()) / 1000;
        if (!answer.ok) continue;
        const next = new DOMParser().parseFromString(await answer.text(), "text/html").body;
        if (part === "drawn" && !window.Plotly) await plotly();
        report.replace(root, next);
        seen = answer.headers.get("ETag");
        ago();
      } catch {
        tell("no connection", true);
      }
    }
  }

  setInterval(ago, 1000);
  ago();
  follow("top", 1000);
  follow("drawn", 3000);
})();
