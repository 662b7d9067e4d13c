"use strict";
(() => {
  const { points, charts } = JSON.parse(document.getElementById("data").textContent);
  const many = points.runs.length > 1;
  const total = points.text.length;
  const DOTS_BY_GPU = 3000; // beyond so many dots, they are drawn by WebGL where there is one
  const ROWS = 50;

  const palettes = {
    light: {
      ink: "#1d2226", soft: "#5e6870", line: "#e6e9eb", dot: "#8a949c", faded: "rgba(138,148,156,0.12)",
      best: "#c2372e", top: "#2b7a4b", third: "#2f62a8", fourth: "#9a6300", edge: "#c3c9ce", panel: "#ffffff",
      heat: [[0, "#f5f6f7"], [1, "#8f1d16"]],
      runs: ["#c2372e", "#2f62a8", "#2b7a4b", "#9a6300", "#7a4fa3", "#1f8790", "#b3447c", "#5e6870", "#8c9a1c", "#1d2226"],
    },
    dark: {
      ink: "#e6e9eb", soft: "#9aa5ad", line: "#2c3238", dot: "#77838c", faded: "rgba(119,131,140,0.15)",
      best: "#ff7a6e", top: "#6cc792", third: "#7fb0f5", fourth: "#e0b050", edge: "#4a535b", panel: "#1c2024",
      heat: [[0, "#22282d"], [1, "#ff8a7e"]],
      runs: ["#ff7a6e", "#7fb0f5", "#6cc792", "#e0b050", "#bf9bea", "#5cc5cf", "#f08fc0", "#a9b4bc", "#c9d65a", "#ffffff"],
    },
  };
  // Why evaluations were saved, and how functions come about, are colours, too.
  const others = {
    "same function": "top", "same channels": "third", "cut by index": "edge",
    SOAP: "third", random: "dot", crossover: "top", mutation: "best", "crossover + mutation": "fourth",
  };

  const asked = matchMedia("(prefers-color-scheme: dark)");
  let theme = null; // what the button says; the system's choice until then
  const dark = () => (theme ?? (asked.matches ? "dark" : "light")) === "dark";
  const palette = () => palettes[dark() ? "dark" : "light"];
  const ofRun = (number) => palette().runs[number % palette().runs.length];

  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const wrapped = (text) => {
    const lines = [];
    for (const line of text.split("\n")) {
      for (let at = 0; at < line.length; at += 72) lines.push(escaped(line.slice(at, at + 72)));
    }
    return lines.slice(0, 12).join("<br>") + (lines.length > 12 ? "<br>…" : "");
  };
  const percent = (share) => (share === null ? "failed" : (100 * share).toFixed(2) + " %");
  const placeOf = new Map();
  for (let i = 0; i < total; i++) {
    placeOf.set(`${points.run[i]}:${points.generation[i]}.${points.index[i]}`, i);
  }
  const formula = (i) => points.texts[points.text[i]];
  const accuracies = (i) =>
    points.tasks[points.run[i]].map((task, k) => `${task} ${percent(points.accuracies[i][k])}`).join(", ");
  const parents = (i) => points.parents[i].map(([g, k]) => `${g}.${k}`).join(", ") || "none";

  const hoverText = (i) => [
    wrapped(formula(i)),
    `<b>${percent(points.fitness[i])}</b> (${escaped(accuracies(i))})`,
    `${points.generation[i]}.${points.index[i]}, ${escaped(points.origins[points.origin[i]])}; parents: ${parents(i)}`,
    ...(many ? [escaped(points.runs[points.run[i]])] : []),
  ].join("<br>");

  // --- which functions are shown -----------------------------------------------------------------------
  let shown = Array.from({ length: total }, (_, i) => i);
  const chosen = { words: [], origin: "", run: "" };
  const select = () => {
    const fits = points.texts.map((text) => chosen.words.every((word) => text.includes(word)));
    shown = [];
    for (let i = 0; i < total; i++) {
      if (!fits[points.text[i]]) continue;
      if (chosen.origin !== "" && points.origin[i] !== Number(chosen.origin)) continue;
      if (chosen.run !== "" && points.run[i] !== Number(chosen.run)) continue;
      shown.push(i);
    }
  };

  // --- charts ------------------------------------------------------------------------------------------
  const webgl = total > DOTS_BY_GPU && (() => {
    try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
  })();
  // A fixed shift sideways, so that dots of one generation do not hide each other.
  const sideways = (i) => ((points.index[i] * 0.618034 + points.run[i] * 0.5) % 1 - 0.5) * 0.6;

  const symbols = ["circle", "diamond-open", "cross", "square-open", "x"];
  const dots = () => {
    const colours = palette();
    const rest = shown.length === total ? [] : (() => {
      const inside = new Set(shown);
      return Array.from({ length: total }, (_, i) => i).filter((i) => !inside.has(i));
    })();
    const trace = (places, name, colour, hover) => ({
      type: webgl ? "scattergl" : "scatter", mode: "markers", name,
      x: places.map((i) => points.generation[i] + sideways(i)),
      y: places.map((i) => 100 * points.fitness[i]),
      places,
      text: hover ? places.map(hoverText) : undefined,
      hoverinfo: hover ? "text" : "skip",
      showlegend: hover && !many,
      marker: {
        size: total > 2000 ? 4 : 6, opacity: !hover ? 1 : many ? 0.5 : 0.75,
        symbol: many ? places.map((i) => symbols[points.run[i] % symbols.length]) : "circle",
        color: many && hover ? places.map((i) => ofRun(points.run[i])) : colour,
      },
    });
    const found = [trace(shown, "evaluations", colours.dot, true)];
    if (rest.length) found.unshift(trace(rest, "", colours.faded, false));
    return found;
  };

  const painted = (trace) => {
    const colours = palette();
    const { role, texts, ...rest } = trace;
    if (rest.name) rest.name = escaped(rest.name);
    const number = /^run(\d+)$/.exec(role);
    const colour = number ? ofRun(Number(number[1])) : colours[role] ?? colours[others[role]] ?? colours.dot;
    const result = { ...rest };
    if (role === "heat") return { ...result, colorscale: colours.heat };
    result.marker = { ...(trace.marker ?? {}), color: colour };
    if (trace.type === "scatter") result.line = { ...(trace.line ?? {}), color: colour };
    if (texts) Object.assign(result, { hovertext: texts.map(wrapped), hoverinfo: "text" });
    return result;
  };

  // Between two ticks: whole generations, so that there are about a dozen over those that a chart shows.
  const generationStep = (chart) => {
    const all = chart.traces.flatMap((trace) => trace.x).filter((x) => x !== null);
    const span = Math.max(...all) - Math.min(...all);
    return [1, 2, 5, 10, 20, 50, 100, 1000].find((step) => span / step <= 12) ?? 5000;
  };

  const layout = (chart) => {
    const colours = palette();
    const axis = (given) => ({
      gridcolor: colours.line, zeroline: false, linecolor: colours.line, automargin: true, ...given,
      title: { text: escaped(given.title?.text ?? "") },
      ...(given.title?.text === "generation" ? { tickformat: "d", dtick: generationStep(chart) } : {}),
    });
    const full = { ...chart.layout };
    for (const key of Object.keys(full)) if (/^[xy]axis/.test(key)) full[key] = axis(full[key]);
    return {
      ...full,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colours.ink, family: "system-ui, Segoe UI, Roboto, DejaVu Sans, sans-serif", size: 13 },
      margin: { l: 60, r: 16, t: 36, b: 48 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.edge, activecolor: colours.soft },
      hoverlabel: { align: "left", bgcolor: colours.panel, bordercolor: colours.soft, font: { color: colours.ink, family: "ui-monospace, Menlo, DejaVu Sans Mono, monospace", size: 12 } },
      height: chart.height,
      autosize: true,
    };
  };

  const draw = (chart) => {
    const element = document.getElementById(`chart-${chart.name}`);
    if (!element) return;
    const traces = chart.traces.map(painted);
    const all = chart.name === "progress" ? [...dots(), ...traces] : traces;
    Plotly.react(element, all, layout(chart), { responsive: true, displaylogo: false, displayModeBar: innerWidth > 600 && ["progress", "ablation"].includes(chart.name), modeBarButtonsToRemove: ["lasso2d", "select2d"] });
    if (chart.name === "progress" && !element.dataset.listens) {
      element.dataset.listens = "yes";
      element.on("plotly_click", ({ points: [point] }) => {
        const place = point.data.places?.[point.pointIndex ?? point.pointNumber];
        if (place !== undefined) detail(place);
      });
    }
    element.dataset.drawn = dark() ? "dark" : "light";
  };
  // A chart is drawn when it comes near the window; only what is seen costs time.
  const visible = new Set();
  const byElement = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = byElement.get(target);
      if (isIntersecting && !visible.has(chart)) { visible.add(chart); draw(chart); }
    }
  }, { rootMargin: "400px" });
  for (const chart of charts) {
    const element = document.getElementById(`chart-${chart.name}`);
    if (!element) continue;
    element.style.minHeight = `${chart.height}px`; // so that nothing moves when it is drawn
    byElement.set(element, chart);
    watcher.observe(element);
  }
  const redraw = () => visible.forEach(draw);
  addEventListener("beforeprint", () => byElement.forEach((chart, element) => {
    if (element.offsetParent) { visible.add(chart); draw(chart); } // not in a section that is closed
  }));

  // --- table, filter and detail -------------------------------------------------------------------------
  const node = (tag, text, properties = {}) =>
    Object.assign(document.createElement(tag), { textContent: text, ...properties });

  const list = () => {
    const table = document.getElementById("functions");
    if (!table) return;
    const best = new Map(); // of equal functions of a run, the first
    for (const i of shown) {
      const key = points.run[i] + ":" + points.text[i];
      if (!best.has(key)) best.set(key, i);
    }
    const sorted = [...best.values()].sort((a, b) => points.fitness[b] - points.fitness[a] || points.size[a] - points.size[b] || a - b);
    const head = ["fitness (%)", "nodes", "origin", ...(many ? ["run"] : []), "function"];
    const row = node("tr", "");
    const kinds = ["number", "number wide", "wide", ...(many ? ["name wide"] : []), ""];
    head.forEach((text, k) => row.append(node("th", text, { className: kinds[k] })));
    table.tHead.replaceChildren(row);
    table.tBodies[0].replaceChildren(...sorted.slice(0, ROWS).map((i) => {
      const line = node("tr", "", { onclick: () => detail(i) });
      const cells = [(100 * points.fitness[i]).toFixed(2), points.size[i], points.origins[points.origin[i]], ...(many ? [points.runs[points.run[i]]] : [])];
      cells.forEach((text, k) => line.append(node("td", text, { className: kinds[k], title: k === 3 ? text : "" })));
      const cell = node("td", "");
      cell.append(node("code", formula(i)));
      line.append(cell);
      return line;
    }));
    document.getElementById("more").textContent =
      sorted.length > ROWS ? `the best ${ROWS} of ${sorted.length.toLocaleString("en")} distinct functions; filter for others`
        : `${sorted.length} distinct functions`;
    document.getElementById("count").textContent =
      `${shown.length.toLocaleString("en")} of ${total.toLocaleString("en")} evaluations`;
  };

  const detail = (i) => {
    const panel = document.getElementById("detail");
    const line = node("p", `${percent(points.fitness[i])} (${accuracies(i)}); ${points.size[i]} nodes, ${points.origins[points.origin[i]]}, `
      + `generation ${points.generation[i]}, number ${points.index[i]}${many ? ", " + points.runs[points.run[i]] : ""}`);
    const text = node("pre", formula(i));
    const copy = node("button", "copy", { type: "button", className: "copy", onclick: () => copied(copy, formula(i)) });
    const from = node("p", "parents: ");
    if (!points.parents[i].length) from.append("none");
    for (const [g, k] of points.parents[i]) {
      const place = placeOf.get(`${points.run[i]}:${g}.${k}`);
      from.append(node("button", `${g}.${k}`, { type: "button", className: "link", title: place === undefined ? "" : formula(place), onclick: () => place !== undefined && detail(place) }));
    }
    panel.replaceChildren(line, text, copy, from);
    if (i in points.failed) panel.append(node("pre", points.errors[points.failed[i]]));
    panel.hidden = false;
    panel.scrollIntoView({ block: "nearest" });
  };

  const copied = async (button, text) => {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not allowed for files in some browsers
      const area = node("textarea", text);
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "copied" : "press Ctrl-C";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
  for (const button of document.querySelectorAll(".form .copy")) {
    const text = button.closest(".form").querySelector("pre").textContent;
    button.addEventListener("click", () => copied(button, text));
  }

  const origin = document.getElementById("origin");
  if (origin) {
    points.origins.forEach((name, k) => origin.append(node("option", name, { value: String(k) })));
    const change = () => {
      chosen.words = document.getElementById("filter").value.trim().split(/\s+/).filter(Boolean);
      chosen.origin = origin.value;
      chosen.run = document.getElementById("run")?.value ?? "";
      select();
      list();
      draw(charts.find((chart) => chart.name === "progress"));
    };
    let waiting;
    document.getElementById("filter").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(change, 120); });
    origin.addEventListener("change", change);
    document.getElementById("run")?.addEventListener("change", change);
    list();
  }

  document.getElementById("theme").addEventListener("click", () => {
    theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    redraw();
  });
  asked.addEventListener("change", redraw);
})();
