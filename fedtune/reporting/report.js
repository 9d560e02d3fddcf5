"use strict";
(() => {
  const PAPER = 680; // px between the margins of a printed page
  const HALF = 370; // px of a printed figure of one panel, of which two share a page
  const CONFIG = { // nothing leaves the page: by itself Plotly has a button that sends a figure to a server of its maker
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"],
  };
  const STEP = 200; // rows of a table that are shown at once

  // figures: drawn when they come near
  const specs = new Map(); // of those that are drawn

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
    specs.set(box, JSON.parse(box.nextElementSibling.textContent));
    const { data, layout } = structuredClone(specs.get(box));
    const narrow = box.clientWidth < 560;
    const asked = { ...layout, autosize: true };
    if (narrow) lessRoom(data, asked);
    box.style.minHeight = asked.height + "px";
    Plotly.newPlot(box, data, asked, { ...CONFIG, displayModeBar: narrow ? false : "hover" });
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "100% 0px" });
  const boxes = [...document.querySelectorAll(".plot")];
  boxes.forEach((box) => near.observe(box));

  // on paper every figure that is not folded away, at the paper's width, two on a page
  window.addEventListener("beforeprint", () => {
    for (const box of boxes.filter((b) => !b.closest("details:not([open])"))) {
      draw(box); // by itself: a figure that never was of its own width cannot go back to it
      const { height } = specs.get(box).layout;
      Plotly.relayout(box, { width: PAPER, height: height < 1.6 * HALF ? Math.min(height, HALF) : height, autosize: false });
    }
  });
  window.addEventListener("afterprint", () => {
    for (const [box, { layout }] of specs) Plotly.relayout(box, { width: null, height: layout.height, autosize: true });
  });

  // tables of trials: rows come as JSON; a click on a heading sorts, twice the other way; what is missing stands last
  function written(value, digits) {
    if (value === null) return "";
    if (typeof value !== "number") return String(value);
    if (digits !== null) return value.toFixed(digits);
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  }

  function compared(a, b, down) {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
    return down ? -order : order;
  }

  function table(root) {
    const { columns, rows, best, sort, rising } = JSON.parse(root.querySelector("script").textContent);
    const [text, status, count, more] = ["[name=text]", "[name=status]", ".count", ".more"].map((q) => root.querySelector(q));
    const head = root.querySelector("thead").appendChild(document.createElement("tr"));
    const body = root.querySelector("tbody");
    const statusAt = columns.findIndex((c) => c.name === "status");
    const lines = rows.map((row) => ({
      row, cells: row.map((v, i) => written(v, columns[i].digits)),
    }));
    for (const line of lines) line.text = line.cells.join("\n").toLowerCase();
    let by = sort, down = !rising, limit = STEP;

    const headings = columns.map((column, i) => {
      const th = head.appendChild(document.createElement("th"));
      th.scope = "col";
      if (column.numeric) th.className = "n";
      const button = th.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = column.name;
      button.addEventListener("click", () => {
        down = by === i ? !down : column.numeric;
        by = i;
        anew();
      });
      return th;
    });
    for (const s of new Set(rows.map((row) => row[statusAt]))) status.append(new Option(s, s));

    function show() {
      headings.forEach((th, i) => {
        if (i === by) th.setAttribute("aria-sort", down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      });
      const wanted = text.value.trim().toLowerCase();
      const found = lines.filter((l) => l.text.includes(wanted) && (!status.value || l.row[statusAt] === status.value));
      found.sort((a, b) => compared(a.row[by], b.row[by], down));
      const page = found.slice(0, limit);
      body.replaceChildren(...page.map((line) => {
        const tr = document.createElement("tr");
        if (line.row[0] === best) tr.className = "best";
        line.cells.forEach((cell, i) => {
          const td = tr.appendChild(document.createElement("td"));
          td.textContent = cell;
          td.className = columns[i].numeric ? "n" : columns[i].name === "reason" ? "wide" : "";
        });
        return tr;
      }));
      const part = page.length < found.length ? `, the first ${page.length} shown` : "";
      count.textContent = `${found.length} of ${rows.length} trials${part}`;
      more.hidden = page.length === found.length;
    }
    function anew() { // few rows again: thousands take a second to lay out
      limit = STEP;
      show();
    }
    text.addEventListener("input", anew);
    status.addEventListener("change", anew);
    more.addEventListener("click", () => {
      limit = limit === STEP ? 10 * STEP : Infinity;
      show();
    });
    show();
  }
  document.querySelectorAll(".trials-box").forEach(table);

  for (const button of document.querySelectorAll(".copy button")) {
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
})();
