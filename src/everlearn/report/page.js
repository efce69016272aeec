(() => {
  "use strict";

  // Tables: a button in each heading sorts; what is missing stays last, and so do the rows of means.
  const plain = (cell) => cell.firstChild ? cell.firstChild.textContent.trim() : "";
  const number = (cell) => {
    if (cell.dataset.order) return Number(cell.dataset.order);
    const text = plain(cell).replace(/\u2212/g, "-").replace(/,/g, "");
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*[%×]?$/.test(text) ? parseFloat(text) : NaN;
  };
  const missing = (cell) => !cell || ["", "–"].includes(plain(cell));
  const sort = (table, place, ascending) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.classList.contains("mean"));
    const means = [...body.rows].filter((row) => row.classList.contains("mean"));
    const known = rows.filter((row) => !missing(row.cells[place]));
    const numeric = known.every((row) => !Number.isNaN(number(row.cells[place])));
    known.sort((a, b) => {
      const [one, other] = [a.cells[place], b.cells[place]];
      const order = numeric ? number(one) - number(other)
        : plain(one).localeCompare(plain(other), "en", { numeric: true });
      return ascending ? order : -order;
    });
    body.append(...known, ...rows.filter((row) => missing(row.cells[place])), ...means);
  };
  for (const table of document.querySelectorAll("table.data")) {
    if (table.tBodies[0].rows.length < 2) continue;
    table.classList.add("sortable");
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        // The better end comes first, where an arrow in the heading says which that is.
        const ascending = now ? now === "descending" : !head.textContent.includes("↑");
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, place, ascending);
      });
    });
  }

  // Figures: what a point is, under the pointer or the finger, or with the arrow keys.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const hide = () => {
    tip.textContent = "";
    tip.classList.remove("shown");
    for (const ring of document.querySelectorAll("circle.here")) ring.remove();
  };
  const show = (x, y, text) => {
    tip.textContent = text;
    tip.classList.add("shown");
    const [wide, high] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(x - wide / 2, document.documentElement.clientWidth - wide - 4))}px`;
    tip.style.top = `${y - high - 14 > 0 ? y - high - 14 : y + 18}px`;
  };
  const collected = new WeakMap();
  const pointsOf = (svg) => {
    if (!collected.has(svg)) {
      const points = [];
      for (const title of [...svg.querySelectorAll("title")]) {
        const shape = title.parentNode, told = title.textContent, data = shape.getAttribute("d");
        const at = data ? [...data.matchAll(/[ML](-?[\d.]+),(-?[\d.]+)/g)].map((each) => [+each[1], +each[2]])
          : [[+shape.getAttribute("cx"), +shape.getAttribute("cy")]];
        // Of a line the title's first line is its name; its points follow, or stand in an attribute where they are many.
        const [name, ...lines] = told.split("\n");
        const values = shape.dataset.v ? shape.dataset.v.split("|") : lines;
        if (at.length > 1) values.forEach((value, i) => points.push([...at[i], `${name}\n${value}`.trim()]));
        else points.push([...at[0], told]);
        title.remove();
      }
      collected.set(svg, points);
    }
    return collected.get(svg);
  };
  const tell = (svg, point) => {
    hide();
    const place = new DOMPoint(point[0], point[1]).matrixTransform(svg.getScreenCTM());
    const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [key, value] of [["class", "here"], ["cx", point[0]], ["cy", point[1]], ["r", 8]]) ring.setAttribute(key, value);
    svg.append(ring);
    show(place.x, place.y, point[2]);
  };
  const nearest = (svg, event) => {
    const matrix = svg.getScreenCTM(), reach = event.pointerType === "mouse" ? 24 : 40;
    let best = null, least = reach;
    for (const point of pointsOf(svg)) {
      const at = new DOMPoint(point[0], point[1]).matrixTransform(matrix);
      const far = Math.hypot(at.x - event.clientX, at.y - event.clientY);
      if (far < least) [best, least] = [point, far];
    }
    return best;
  };
  for (const svg of document.querySelectorAll("figure > svg")) {
    if (!svg.querySelector("title")) continue;
    let place = -1;
    const seek = (event) => {
      const point = nearest(svg, event);
      if (point) tell(svg, point); else hide();
    };
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-roledescription", "figure; arrow keys tell its numbers");
    svg.addEventListener("pointermove", seek);
    svg.addEventListener("pointerdown", seek);
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const points = pointsOf(svg), last = points.length - 1;
      const to = { ArrowRight: Math.min(place + 1, last), ArrowLeft: Math.max(place - 1, 0), Home: 0, End: last }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      place = to;
      tell(svg, points[place]);
    });
  }
  for (const cell of document.querySelectorAll("td[title]")) {
    cell.addEventListener("click", (event) => show(event.clientX, event.clientY, cell.title));
  }
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("figure, td[title]")) hide(); });
  document.addEventListener("scroll", hide, { passive: true });
})();
