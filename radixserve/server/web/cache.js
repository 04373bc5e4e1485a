// The page at "/cache": the live tree, as bars that are as long as they have tokens.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const HUES = [[12, 75, 48], [45, 70, 42], [160, 45, 36], [215, 40, 45]]; // from just now to long ago
let nodes = [], chosen = null, paused = false;

function draw(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// Ages by rank: steps pass fast or slowly, and only the order says what is evicted first.
function colours(shown) {
  const ages = [...new Set(shown.map((node) => node.idle))].sort((a, b) => a - b);
  const rank = new Map(ages.map((age, place) => [age, place / Math.max(1, ages.length - 1)]));
  return (node) => {
    const at = rank.get(node.idle) * (HUES.length - 1);
    const low = Math.min(Math.floor(at), HUES.length - 2), part = at - low;
    const [h, s, l] = HUES[low].map((value, i) => value + part * (HUES[low + 1][i] - value));
    return `hsl(${h.toFixed(0)} ${s.toFixed(0)}% ${l.toFixed(0)}%)`;
  };
}

// Each node with the rows that it takes: a leaf takes one, all others as many as their children.
function laidOut(shown) {
  const known = new Map(shown.map((node) => [node.id, { ...node, below: [], rows: 0, row: 0 }]));
  const tops = [];
  for (const node of known.values()) (known.get(node.above)?.below ?? tops).push(node);
  const ordered = [...known.values()]; // parents before children
  for (const node of [...ordered].reverse()) {
    node.rows = Math.max(1, node.below.reduce((sum, child) => sum + child.rows, 0));
  }
  let free = 0;
  for (const top of tops) { top.row = free; free += top.rows; }
  for (const node of ordered) {
    let row = node.row;
    for (const child of node.below) { child.row = row; row += child.rows; }
  }
  return { ordered, rows: Math.max(free, 1) };
}

function show() {
  const svg = $("tree"), box = svg.getBoundingClientRect();
  const width = Math.max(200, box.width), height = Math.max(200, box.height) - 20;
  const { ordered, rows } = laidOut(nodes);
  const longest = Math.max(1, ...ordered.map((node) => node.end));
  const x = (tokens) => (width * tokens) / longest, y = (row) => (height * row) / rows;
  const colour = colours(ordered);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height + 20}`);
  for (const node of ordered) {
    const wide = Math.max(1, x(node.end) - x(node.start)), high = Math.max(0.5, y(node.rows));
    const name = [node.pins && "pinned", node.id === chosen && "chosen"].filter(Boolean).join(" ");
    const bar = draw(svg, "rect", {
      x: x(node.start), y: y(node.row), width: wide, height: high, fill: colour(node), class: name,
      "data-id": node.id,
    });
    bar.addEventListener("pointerenter", () => choose(node));
    const label = node.hits ? `${node.end - node.start} · ${node.hits}×` : `${node.end - node.start}`;
    if (wide > 9 * label.length && high > 14) {
      draw(svg, "text", { x: x(node.start) + 4, y: y(node.row) + Math.min(high / 2 + 4, 16) }, label);
    }
  }
  for (let part = 0; part < 4; part += 1) {
    const tokens = Math.round((longest * part) / 4);
    draw(svg, "text", { class: "axis", x: x(tokens) + 2, y: height + 15 }, `${tokens.toLocaleString()} tokens`);
  }
  if (!ordered.length) draw(svg, "text", { class: "axis", x: 12, y: 24 }, "Nothing is cached yet.");
}

function choose(node) {
  chosen = node.id;
  for (const bar of $("tree").querySelectorAll("rect")) {
    bar.classList.toggle("chosen", bar.dataset.id === String(node.id));
  }
  $("none").hidden = true;
  $("node").hidden = false;
  const say = (id, value) => ($(id).textContent = value);
  say("node-tokens", (node.end - node.start).toLocaleString());
  say("node-place", `${node.start.toLocaleString()}, ${node.end.toLocaleString()}`);
  say("node-hits", node.hits.toLocaleString());
  say("node-pins", node.pins.toLocaleString());
  say("node-idle", node.idle.toLocaleString());
  say("node-tenant", node.tenant === null ? "everybody" : node.tenant || "–");
  say("node-hidden", node.hidden_children.toLocaleString());
  say("node-text", node.text ?? "");
}

async function look() {
  try {
    const key = $("key").value.trim();
    const limit = encodeURIComponent($("limit").value || "500");
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const response = await fetch(`v1/cache/tree?limit=${limit}`, { headers });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error.message);
    nodes = answer.nodes;
    const say = (id, value) => ($(id).textContent = value === null ? "–" : value.toLocaleString());
    say("shown", nodes.length);
    say("all", answer.total_nodes);
    say("tokens", nodes.reduce((sum, node) => sum + node.end - node.start, 0));
    say("longest", Math.max(0, ...nodes.map((node) => node.end)));
    say("pinned", nodes.filter((node) => node.pins).length);
    $("health").textContent = "";
    show();
  } catch (error) {
    $("health").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  $("pause").textContent = paused ? "Go on" : "Pause";
});
$("limit").addEventListener("change", look);
$("key").value = sessionStorage.getItem("key") ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value);
  look();
});
addEventListener("resize", show);
look();
setInterval(() => document.hidden || paused || look(), 1000);
