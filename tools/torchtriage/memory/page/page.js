"use strict";

const words = (bytes) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= size) return `${(bytes / size).toFixed(2)} ${unit}`;
  }
  return `${bytes} bytes`;
};

/* Zooms into a frame of a flame graph, and says what is under the pointer or has the focus. */
const liven = (flame) => {
  const key = flame.closest("section").querySelector(".flame-readout");
  const reset = flame.closest("section").querySelector(".reset");
  const help = key.textContent;
  const boxes = [...flame.querySelectorAll(".b")].map((element) => ({
    element,
    start: parseFloat(element.getAttribute("x")),
    width: parseFloat(element.getAttribute("width")),
    y: Number(element.getAttribute("y")),
    shown: true,
  }));
  const of = new Map(boxes.map((box) => [box.element, box]));
  const slack = 0.0002; // positions are rounded
  const inside = (box, outer) =>
    box.start >= outer.start - slack && box.start + box.width <= outer.start + outer.width + slack;
  const at = (event) => of.get(event.target.closest(".b"));
  const say = (box) => { key.textContent = box ? box.element.querySelector("title").textContent : help; };

  const zoom = (chosen) => {
    for (const box of boxes) {
      const caller = box.y < chosen.y && inside(chosen, box);
      box.shown = caller || (box.y >= chosen.y && inside(box, chosen));
      box.element.classList.toggle("caller", caller);
      box.element.setAttribute("visibility", box.shown ? "visible" : "hidden");
      if (!box.shown) continue;
      box.element.setAttribute("x", `${caller ? 0 : ((box.start - chosen.start) / chosen.width) * 100}%`);
      box.element.setAttribute("width", `${caller ? 100 : (box.width / chosen.width) * 100}%`);
    }
    reset.disabled = chosen === boxes[0];
  };
  const focus = (box) => {
    if (!box) return;
    for (const other of boxes) other.element.setAttribute("tabindex", other === box ? "0" : "-1");
    box.element.focus();
  };
  const beside = (box, by) => {
    const row = boxes.filter((other) => other.shown && other.y === box.y).sort((a, b) => a.start - b.start);
    return row[row.indexOf(box) + by];
  };
  const rows = Number(flame.dataset.row);
  const moves = {
    ArrowDown: (box) => boxes.find((other) => other.shown && other.y === box.y + rows && inside(other, box)),
    ArrowUp: (box) => boxes.find((other) => other.y === box.y - rows && inside(box, other)),
    ArrowLeft: (box) => beside(box, -1),
    ArrowRight: (box) => beside(box, 1),
    Home: () => boxes[0],
  };

  for (const box of boxes) {
    box.element.setAttribute("role", "button");
    box.element.setAttribute("tabindex", box === boxes[0] ? "0" : "-1");
    box.element.setAttribute("aria-label", box.element.querySelector("title").textContent);
  }
  flame.classList.add("live");
  flame.setAttribute("role", "group");
  key.hidden = false;
  reset.hidden = false;
  reset.disabled = true;
  flame.addEventListener("click", (event) => { const box = at(event); if (box) zoom(box); });
  flame.addEventListener("pointerover", (event) => say(at(event)));
  flame.addEventListener("pointerleave", () => say(of.get(document.activeElement)));
  flame.addEventListener("focusin", (event) => say(at(event)));
  flame.addEventListener("keydown", (event) => {
    const box = at(event);
    if (!box) return;
    if (event.key === "Enter" || event.key === " ") zoom(box);
    else if (event.key === "Escape") zoom(boxes[0]);
    else if (event.key in moves) focus(moves[event.key](box));
    else return;
    event.preventDefault();
  });
  reset.addEventListener("click", () => {
    zoom(boxes[0]);
    focus(boxes[0]);
  });
};

/* Says what was allocated and reserved at the event under the pointer; arrow keys move it. */
const follow = (chart) => {
  const readout = chart.parentElement.querySelector(".readout");
  const cross = chart.querySelector(".cross");
  const points = chart.dataset.points.split(" ").map((point) => point.split(",").map(Number));
  const last = Number(chart.dataset.last);
  const help = "Move over the chart, or use the arrow keys, to read it.";
  let here = points.length - 1;
  const show = (index) => {
    here = Math.max(0, Math.min(points.length - 1, index));
    const [event, allocated, reserved] = points[here];
    const x = `${Math.min(100, (100 * event) / last)}%`;
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    readout.textContent = `event ${event.toLocaleString("en")}: ${words(allocated)} allocated, ${words(reserved)} reserved`;
  };
  const leave = () => { cross.setAttribute("visibility", "hidden"); readout.textContent = help; };
  readout.hidden = false;
  readout.textContent = help;
  chart.setAttribute("tabindex", "0");
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * last;
    let nearest = 0;
    points.forEach((point, index) => {
      if (Math.abs(point[0] - wanted) < Math.abs(points[nearest][0] - wanted)) nearest = index;
    });
    show(nearest);
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    show(here + by);
    event.preventDefault();
  });
};

document.querySelectorAll("svg.flame").forEach(liven);
document.querySelectorAll("svg.timeline").forEach(follow);
