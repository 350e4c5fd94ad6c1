"use strict";
// Draws the plots from the data element, which has the form of the type plot in html.go. Text only ever goes through
// textContent.
(() => {
  const report = JSON.parse(document.getElementById("data").textContent);
  const svg = document.getElementById("timeline");
  const ready = () => { document.documentElement.dataset.ready = "true"; };
  if (!svg) return ready();

  const { step_seconds: step, points, strips } = report;
  const first = points[0].at, end = points[points.length - 1].at + step;
  const figure = document.getElementById("plots"), readout = document.getElementById("readout");
  const left = 44, top = 8, bottom = 22;
  let bins = [], start = first, width = 0, chosen = -1, series = "all", cursors = [];

  const make = (name, attributes, parent, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    return parent.appendChild(e);
  };
  const number = (n) => n.toLocaleString("en");
  const two = (n) => String(n).padStart(2, "0");
  const time = (s) => s < 60 ? s + " s" : Math.floor(s / 60) + ":" + two(s % 60);
  const span = (s) => {
    for (const [unit, length] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
      if (s % length === 0) return s === length ? unit : s / length + " " + unit + "s";
    }
    return s + " s";
  };

  // gather sums the points into as many bins as the width can show, of a length that people count in.
  const lengths = [1, 2, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const gather = () => {
    const room = Math.max(1, Math.floor((width - left) / 3));
    const fits = (l) => l % step === 0 && (end - first) / l <= room;
    const length = lengths.find(fits) || step * Math.max(1, Math.ceil((end - first) / step / room));
    start = Math.floor(first / length) * length;
    bins = Array.from({ length: Math.ceil((end - start) / length) }, (_, i) =>
      ({ at: start + i * length, allowed: 0, denied: 0, other: 0, limits: strips.map(() => 0) }));
    points.forEach((p, i) => {
      const b = bins[Math.floor((p.at - start) / length)];
      b.allowed += p.allowed; b.denied += p.denied; b.other += p.other;
      strips.forEach((l, j) => { b.limits[j] += l.timeline[i]; });
    });
    document.getElementById("per").textContent = "per " + span(length);
    return length;
  };
  const x = (i) => left + (width - left) * i / bins.length;
  const columns = (from, to, scale) => { // a path of the bins' columns between two heights
    const gap = (width - left) / bins.length > 5 ? 1 : 0;
    return bins.map((b, i) => to(b) > from(b)
      ? `M${x(i).toFixed(2)} ${scale(from(b)).toFixed(2)}V${scale(to(b)).toFixed(2)}` +
        `H${(x(i + 1) - gap).toFixed(2)}V${scale(from(b)).toFixed(2)}Z` : "").join("");
  };
  const nice = (most) => { // the distance of the lines of a scale
    const rough = Math.max(1, most / 3), power = 10 ** Math.floor(Math.log10(rough));
    return Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough));
  };

  const drawTimeline = (length) => {
    const height = svg.clientHeight, floor = height - bottom;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const zero = () => 0, denied = (b) => b.denied;
    const all = (b) => series === "all" ? b.denied + b.allowed : b.denied;
    const most = Math.max(1, ...bins.map(all)), line = nice(most);
    const scale = (n) => floor - (floor - top) * n / most;
    for (let n = 0; n <= most; n += line) {
      make("path", { class: "grid", d: `M${left} ${scale(n)}H${width}` }, svg);
      make("text", { x: left - 6, y: scale(n) + 4, "text-anchor": "end" }, svg,
        n >= 10000 ? number(n / 1000) + "k" : number(n));
    }
    for (const b of report.bands) {
      const at = (t) => left + (width - left) * Math.min(Math.max((t - start) / (bins.length * length), 0), 1);
      make("rect", { class: "band", x: at(b.from), y: top, width: Math.max(at(b.until) - at(b.from), 2),
        height: floor - top }, svg);
    }
    drawTimes(floor, height, length);
    make("path", { class: "denied", d: columns(zero, denied, scale) }, svg);
    make("path", { class: "allowed", d: columns(denied, all, scale) }, svg);
    for (const key of ["allowed", "denied"]) svg.dataset[key] = bins.reduce((sum, b) => sum + b[key], 0);
    return make("path", { class: "cursor", d: `M0 ${top}V${floor}`, visibility: "hidden" }, svg);
  };
  const drawTimes = (floor, height, length) => {
    const total = bins.length * length, room = Math.max(2, Math.floor((width - left) / 90));
    const every = lengths.find((s) => total / s <= room) || Math.ceil(total / room);
    for (let t = Math.ceil(start / every) * every; t < start + total; t += every) {
      const at = left + (width - left) * (t - start) / total;
      if (at > width - 24) break;
      make("path", { class: "grid", d: `M${at} ${floor}v4` }, svg);
      make("text", { x: at, y: height - 4, "text-anchor": at < left + 24 ? "start" : "middle" }, svg, time(t));
    }
  };
  const drawStrip = (element, j, length) => {
    const strip = element.querySelector("svg"), height = strip.clientHeight;
    strip.setAttribute("viewBox", `0 0 ${width} ${height}`);
    strip.replaceChildren();
    make("rect", { class: "track", x: left, y: 6, width: width - left, height: height - 8, rx: 3 }, strip);
    const most = Math.max(1, ...bins.map((b) => b.limits[j]));
    const levels = ["", "", "", "", "", ""];
    bins.forEach((b, i) => {
      if (!b.limits[j]) return;
      const level = Math.max(1, Math.ceil(5 * Math.sqrt(b.limits[j] / most)));
      levels[level] += `M${x(i).toFixed(2)} 6V${height - 2}H${Math.max(x(i + 1), x(i) + 1.5).toFixed(2)}V6Z`;
    });
    levels.forEach((d, level) => { if (d) make("path", { class: "h" + level, d }, strip); });
    strip.dataset.denied = bins.reduce((sum, b) => sum + b.limits[j], 0);
    return make("path", { class: "cursor", d: `M0 4V${height}`, visibility: "hidden" }, strip);
  };

  const choose = (i, length) => {
    chosen = Math.min(Math.max(i, 0), bins.length - 1);
    reading = bins[chosen].at;
    const b = bins[chosen], until = b.at + length, middle = (x(chosen) + x(chosen + 1)) / 2;
    for (const c of cursors) {
      c.setAttribute("transform", `translate(${middle} 0)`);
      c.setAttribute("visibility", "visible");
    }
    const parts = [`${time(b.at)} to ${time(until)}`, number(b.allowed) + " allowed", number(b.denied) + " denied"];
    if (b.other) parts.push(number(b.other) + " refused or not routed");
    strips.forEach((l, j) => { if (b.limits[j]) parts.push(`${l.id}: ${number(b.limits[j])}`); });
    readout.textContent = parts.join(" · ");
  };
  let length = step;
  let reading = first; // the time read out
  const draw = () => {
    width = svg.clientWidth;
    if (!width) return;
    length = gather();
    cursors = [drawTimeline(length)];
    document.querySelectorAll(".strip").forEach((e, j) => cursors.push(drawStrip(e, j, length)));
    choose(bins.findIndex((b) => b.at <= reading && reading < b.at + length), length);
  };

  figure.addEventListener("pointermove", (e) => {
    const at = (e.clientX - svg.getBoundingClientRect().left - left) / (width - left);
    if (at >= 0 && at <= 1) choose(Math.floor(at * bins.length), length);
  });
  figure.addEventListener("keydown", (e) => {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: bins.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    choose(to, length);
  });
  const choice = document.getElementById("series");
  choice.hidden = report.denied === 0;
  choice.addEventListener("change", (e) => { series = e.target.value; draw(); });
  new ResizeObserver(() => { if (svg.clientWidth !== width) draw(); }).observe(svg);
  draw();
  ready();
})();
