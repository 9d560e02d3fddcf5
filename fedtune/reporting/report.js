"use strict";
const report = (() => { // what a page shows; a live page shows it again and again
  const PAPER = 680; // px between the margins of a printed page
  const HALF = 370; // px of a printed figure of one panel, of which two share a page
  const CONFIG = { // nothing leaves the page: by itself Plotly has a button that sends a figure to a server of its maker
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"],
  };

  // Plotly, compressed in the page: the policy allows a script of this text, and of no other
  const unpacked = (text) => new Response(new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]).stream()
    .pipeThrough(new DecompressionStream("deflate"))).text();

  const inside = document.getElementById("plotly"); // a live page fetches it, and tells when it has it
  const ready = inside ? unpacked(inside.textContent).then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }) : new Promise((done) => document.addEventListener("plotly", done, { once: true }));

  // figures: drawn when they come near
  const specs = new Map(); // of those that are drawn: their text and what it holds

  function lessRoom(data, layout) { // a phone's width: narrow margins, small titles of axes, no scale of colours
    layout.margin = { ...layout.margin, l: 45, r: 8 };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis/.test(name) && layout[name].title) layout[name].title.font = { size: 11 };
      if (/^xaxis/.test(name) && layout[name].ticktext) { // names, which would lie on one another
        Object.assign(layout[name], { tickangle: -50, automargin: true, ticklabeloverflow: "allow" });
      }
    }
    for (const trace of data) if (trace.marker) trace.marker.showscale = false;
  }

  function draw(box) {
    if (specs.has(box)) return;
    const text = box.nextElementSibling.textContent;
    specs.set(box, { text, ...JSON.parse(text) });
    paint(box, Plotly.newPlot);
  }

  function paint(box, how) {
    const { data, layout } = structuredClone(specs.get(box));
    const narrow = box.clientWidth < 560;
    const asked = { ...layout, autosize: true, uirevision: "same" }; // a zoom stays where a figure is updated
    if (narrow) lessRoom(data, asked);
    box.style.minHeight = asked.height + "px";
    how(box, data, asked, { ...CONFIG, displayModeBar: narrow ? false : "hover" });
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) ready.then(() => draw(entry.target));
  }, { rootMargin: "100% 0px" });
  const boxes = () => [...document.querySelectorAll(".plot")];

  document.addEventListener("toggle", ({ target }) => { // the page may have another width by now
    for (const box of target.querySelectorAll(".plot")) if (specs.has(box)) Plotly.Plots.resize(box);
  }, true);

  // on paper every figure of a search that is not folded away, at the paper's width, two on a page
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.part:not([open])")];
    for (const tab of folded) tab.open = true;
    if (!window.Plotly) return; // not unpacked yet
    for (const box of boxes().filter((b) => !b.closest("details:not([open])"))) {
      draw(box); // by itself: a figure that never was of its own width cannot go back to it
      const { layout } = specs.get(box), { height, xaxis3 } = layout; // three panels need their height
      Plotly.relayout(box, { width: PAPER, height: height < 1.6 * HALF && !xaxis3 ? Math.min(height, HALF) : height, autosize: false });
    }
  });
  window.addEventListener("afterprint", () => {
    for (const tab of folded) tab.open = false;
    for (const [box, { layout }] of specs) Plotly.relayout(box, { width: null, height: layout.height, autosize: true });
  });

  // tables of many rows: a click on a heading sorts, twice the other way; what is missing stands last
  function sort(th, down) {
    const body = th.closest("table").tBodies[0], numeric = th.className === "n";
    const cell = (row) => row.cells[th.cellIndex].textContent;
    body.append(...[...body.rows].map((row) => [cell(row), row]).sort(([a], [b]) => {
      if (!a || !b) return !a - !b;
      const order = numeric ? a - b : a.localeCompare(b, undefined, { numeric: true });
      return down ? -order : order;
    }).map(([, row]) => row));
    for (const other of th.parentElement.cells) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  function filter(box) { // by a text in any column; what is chosen stays in sight
    const wanted = box.querySelector("[name=text]").value.trim().toLowerCase();
    const rows = [...box.querySelectorAll("tbody tr")];
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted) && !row.querySelector(":checked");
    const shown = rows.filter((row) => !row.hidden).length;
    box.querySelector(".count").textContent = shown < rows.length ? `${shown} of ${rows.length} ${box.dataset.things}` : "";
  }

  function table(box, before) { // before: the same table, which this one replaces
    const text = box.querySelector("[name=text]"), headings = [...box.querySelectorAll("th")];
    for (const th of headings) {
      th.querySelector("button")?.addEventListener("click", () => {
        const sorted = th.getAttribute("aria-sort");
        sort(th, sorted ? sorted === "ascending" : th.className === "n");
      });
    }
    text.addEventListener("input", () => filter(box));
    if (before) {
      text.value = before.querySelector("[name=text]").value;
      const chosen = new Set([...before.querySelectorAll(":checked")].map((e) => e.value));
      for (const pick of box.querySelectorAll("[name=run]")) pick.checked = chosen.has(pick.value);
      const by = before.querySelector("th[aria-sort]");
      const th = headings.find((e) => e.textContent === by?.textContent);
      if (th) sort(th, by.getAttribute("aria-sort") === "descending");
    }
    filter(box);
  }

  function copied(button) {
    const said = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = button.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "selected: press Ctrl-C";
      }
      setTimeout(() => { button.textContent = said; }, 3000);
    });
  }

  // what is in this element now; earlier: of tables those that they replace
  function show(root, earlier = new Map()) {
    root.querySelectorAll(".plot").forEach((box) => near.observe(box));
    root.querySelectorAll(".trials-box").forEach((box) => table(box, earlier.get(box)));
    root.querySelectorAll(".copy button").forEach(copied);
  }

  // another content for this element, which people may be reading: what is open, sorted, filtered or zoomed stays so
  function replace(root, next) {
    const both = (query, name, then) => {
      const old = new Map([...root.querySelectorAll(query)].map((e) => [name(e), e]));
      for (const e of next.querySelectorAll(query)) if (old.has(name(e))) then(old.get(name(e)), e);
    };
    const kept = [];
    both("details", (e) => e.dataset.key ?? e.querySelector("summary").textContent, (old, e) => { e.open = old.open; });
    both(".plot", (e) => e.dataset.key, (old, box) => {
      if (!specs.has(old)) return;
      const text = box.nextElementSibling.textContent;
      box.replaceWith(old); // by the figure that is drawn
      if (specs.get(old).text !== text) kept.push([old, text]);
    });
    const earlier = new Map();
    both(".trials-box", (e) => e.dataset.key, (old, e) => earlier.set(e, old));
    const focused = root.contains(document.activeElement) && document.activeElement.name
      ? [document.activeElement.closest(".trials-box")?.dataset.key, document.activeElement.name] : null;
    root.replaceChildren(...next.childNodes);
    show(root, earlier);
    for (const [box, text] of kept) {
      specs.set(box, { text, ...JSON.parse(text) });
      paint(box, Plotly.react);
    }
    if (focused) {
      const box = [...root.querySelectorAll(".trials-box")].find((e) => e.dataset.key === focused[0]);
      box?.querySelector(`[name=${CSS.escape(focused[1])}]`)?.focus();
    }
    for (const box of specs.keys()) if (!box.isConnected) specs.delete(box);
  }

  return { show, replace };
})();
report.show(document);
