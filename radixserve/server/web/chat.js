// The page at "/": a chat, where each prompt's tokens came from, and how full the cache is.

const $ = (id) => document.getElementById(id);
const messages = [];
let running = null; // the AbortController of the answer that is coming

const headers = () => {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
};

function add(parent, tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

function fill(bar, parts) {
  bar.replaceChildren();
  for (const [name, count] of Object.entries(parts)) {
    if (count > 0) add(bar, "span", name).style.flexGrow = count;
  }
  bar.title = Object.entries(parts).map(([name, count]) => `${count} ${name}`).join(", ");
  bar.setAttribute("aria-label", bar.title);
}

function turn(role, text) {
  const item = add($("turns"), "li", role);
  const said = add(item, "div", "said", text);
  item.scrollIntoView({ block: "end" });
  return { item, said };
}

// The data of server-sent events, one at a time.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ") && block !== "data: [DONE]") yield JSON.parse(block.slice(6));
    }
  }
}

function request() {
  const system = $("system").value.trim();
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    stream: true,
    stream_options: { include_usage: true },
    return_cached_tokens_details: true,
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    cache_salt: $("salt").value || undefined,
  };
}

function show(item, usage, first, whole) {
  const { reused_tokens: reused, copied_tokens: copied, computed_tokens: computed } = usage.radixserve;
  fill(add(item, "div", "bar reuse"), { reused, copied, computed });
  const rate = usage.completion_tokens / Math.max(whole - first, 0.001);
  add(item, "p", "note",
    `prompt of ${usage.prompt_tokens} tokens: ${reused} reused, ${copied} copied, ${computed} computed` +
    ` · first token after ${Math.round(first * 1000)} ms` +
    ` · ${usage.completion_tokens} tokens, ${rate.toFixed(1)} a second`);
}

async function answer() {
  running = new AbortController();
  const began = performance.now();
  const passed = () => (performance.now() - began) / 1000;
  const { item, said } = turn("assistant", "");
  let thought = null, first = null, text = "", usage = null;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(request()), signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.content || delta.reasoning) first ??= passed();
      if (delta.reasoning) {
        if (thought === null) item.prepend((thought = add(item, "div", "said thought")));
        thought.textContent += delta.reasoning;
      }
      if (delta.content) said.textContent = text += delta.content;
      item.scrollIntoView({ block: "end" });
    }
    if (usage) show(item, usage, first ?? passed(), passed());
  } catch (error) {
    if (error.name !== "AbortError") add(item, "p", "note wrong", error.message);
    else add(item, "p", "note", "stopped");
  }
  running = null;
  messages.push({ role: "assistant", content: text });
  item.scrollIntoView({ block: "end" });
}

async function ask(event) {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || running) return;
  $("question").value = "";
  messages.push({ role: "user", content: question });
  turn("user", question);
  $("send").hidden = true;
  $("stop").hidden = false;
  await answer();
  $("send").hidden = false;
  $("stop").hidden = true;
  $("question").focus();
  look();
}

async function look() {
  try {
    const response = await fetch("v1/cache/stats", { headers: headers() });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const { pages, tokens, reuse, requests, page_size } = await response.json();
    const count = (id, value) => ($(id).textContent = value.toLocaleString());
    if (pages) { // one tenant of several is not told
      fill($("pages"), { "in-use": pages.in_use, cold: pages.cached, free: pages.free });
      count("total", pages.total);
      count("evicted", pages.evicted);
    }
    $("reuse").textContent = reuse === null ? "–" : `${(100 * reuse).toFixed(1)} %`;
    count("cached", tokens.cached);
    count("computed", tokens.computed);
    count("page-size", page_size);
    for (const [name, value] of Object.entries(requests)) count(name, value);
    $("health").textContent = "";
  } catch (error) {
    $("health").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
  }
}

async function introduce() {
  try {
    const { data } = await (await fetch("v1/models", { headers: headers() })).json();
    $("model").textContent = data[0].id;
  } catch {
    $("model").textContent = "";
  }
}

$("ask").addEventListener("submit", ask);
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  $("turns").replaceChildren();
  $("question").focus();
});
$("key").value = sessionStorage.getItem("key") ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value);
  introduce();
  look();
});
introduce();
look();
setInterval(() => document.hidden || look(), 1000);
