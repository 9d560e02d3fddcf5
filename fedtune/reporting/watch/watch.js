"use strict";
// Follows a page: its top comes with every change, and what is drawn below is fetched when there is something new.
(() => {
  const { address, now, drawn, version } = document.body.dataset;
  const link = document.getElementById("link");
  let ahead = Number(now) - Date.now() / 1000; // of the server's clock
  let seen = version;
  let wanted = drawn ? "first" : "", shown = "", busy = false;

  const parsed = (html) => new DOMParser().parseFromString(html, "text/html").body;

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

  let plotly;
  function withPlotly() { // 5 MB, which the first picture does not wait for
    plotly ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = "/static/plotly.js";
      script.onload = () => {
        document.dispatchEvent(new Event("plotly"));
        done();
      };
      script.onerror = failed;
      document.head.append(script);
    });
    return plotly;
  }

  async function draw() { // the latest, one at a time, and only for people who look
    if (busy || document.hidden || wanted === shown) return;
    busy = true;
    const version = wanted;
    try {
      const [answer] = await Promise.all([fetch(`/drawn${address}`), withPlotly()]);
      if (answer.ok) {
        report.replace(document.getElementById("drawn"), parsed(await answer.text()));
        shown = version;
        ago();
      }
    } catch {
      await new Promise((done) => setTimeout(done, 3000));
    } finally {
      busy = false;
    }
    if (wanted !== shown) setTimeout(draw, 1000);
  }

  document.addEventListener("visibilitychange", draw);
  setInterval(ago, 1000);
  ago();

  const events = new EventSource(`/events${address}`);
  events.addEventListener("open", () => tell("live"));
  events.addEventListener("top", ({ data }) => {
    const told = JSON.parse(data);
    ahead = told.now - Date.now() / 1000;
    if (told.version === seen) return; // as the page came
    seen = told.version;
    report.replace(document.getElementById("top"), parsed(told.html));
    ago();
  });
  events.addEventListener("drawn", ({ data }) => {
    wanted = JSON.parse(data).version;
    draw();
  });
  events.addEventListener("error", () => {
    tell(events.readyState === EventSource.CLOSED ? "ended: start fedtune watch again and open its address" : "no connection", true);
  });
})();
