// The operator's page. It asks for the present ten times a second, draws it, and says so when there is none.
"use strict";

const POLL_MS = 100, TIMEOUT_MS = 1000, STALE_S = 0.5, UNCONFIRMED_S = 1.0, WINDOW_S = 20;
// Limits that take some voltage away and let the flight go on.
const REDUCING = ["voltage", "slew", "rail_brake", "outside_data"];
const ACTING = ["run", "collect"];
const OUTCOMES = { finished: "good", stopped: "care", failed: "", lost: "" };
const byId = (id) => document.getElementById(id);
const COLOURS = Object.fromEntries(["line", "measured", "limit", "band", "quiet"].map(
  (name) => [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]));

let flight = null, state = null, points = [], nPoints = 0;
let heardMs = null, askedMs = null, failure = "", drawn = "";

// Asking

async function get(place) {
  const answer = await fetch(place, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!answer.ok) throw new Error(`the console answered ${answer.status}`);
  return answer.json();
}

async function ask() {
  const news = await get(`state?after=${nPoints}`);
  if (flight === null || flight.number !== news.flight) {
    flight = await get("flight");
    points = []; nPoints = 0; askedMs = null;
    showFlight();
    return ask();
  }
  points = points.concat(news.points);
  nPoints = news.n_points;
  if (points.length) {
    const first = points[points.length - 1][0] - WINDOW_S - 1;
    points = points.filter((point) => point[0] >= first);
  }
  state = news;
  heardMs = performance.now();
}

async function keepAsking() {
  try {
    await ask();
    failure = "";
  } catch (error) {
    failure = "the console does not answer";
  }
  show();
  setTimeout(keepAsking, POLL_MS);
}

// Stopping

async function stop() {
  if (over()) return;
  askedMs = askedMs ?? performance.now();
  show();
  // Again and again until it is seen to have worked.
  for (let attempt = 0; attempt < 20 && !over(); attempt++) {
    try {
      const answer = await fetch("stop", { method: "POST", signal: AbortSignal.timeout(TIMEOUT_MS), keepalive: true });
      if (answer.ok || answer.status === 409) return;
    } catch (error) { /* Tried again; the alarm tells after a second. */ }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const over = () => state !== null && state.ending !== null;
const lost = () => over() && state.ending.outcome === "lost";
const cut = () => state !== null && state.interventions.some((entry) => !REDUCING.includes(entry.reason));

byId("stop-form").addEventListener("submit", (event) => { event.preventDefault(); stop(); });
addEventListener("keydown", (event) => {
  if (event.key === " " || event.key === "Escape") {
    event.preventDefault();
    stop();
  }
});

// Showing

const signed = (value, digits) => value === null ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const degrees = (value) => value === null ? null : value * 180 / Math.PI;
const put = (id, text) => { if (byId(id).textContent !== text) byId(id).textContent = text; };

function showFlight() {
  put("title", flight.title ?? "");
  put("rig", flight.rig ?? "");
  document.title = `${flight.title ?? "Operator's console"} – console`;
  const band = flight.band;
  byId("band-legend").hidden = !band;
  if (band) {
    const share = band.level ? `${Math.round(100 * band.level)} % of ` : "";
    put("band-text", `${share}the predicted flights, for ${band.time_s[band.time_s.length - 1].toFixed(1)} s`);
  }
  const { rail_m: rail, end_m: limit } = flight.limits;
  const place = (x) => 500 + 450 * x / rail;
  byId("margin-left").setAttribute("x", 50); byId("margin-left").setAttribute("width", place(-limit) - 50);
  byId("margin-right").setAttribute("x", place(limit)); byId("margin-right").setAttribute("width", 950 - place(limit));
  for (const [side, sign] of [["left", -1], ["right", 1]]) {
    byId(`mark-${side}`).setAttribute("x", place(sign * limit));
    put(`mark-${side}`, `${signed(sign * 1000 * limit, 0)} mm`);
  }
}

function age() {
  if (heardMs === null || state === null || state.age_s === null) return null;
  return state.age_s + (performance.now() - heardMs) / 1000;
}

function show() {
  if (flight !== null && flight.limits && state !== null) {
    showPhase(); showNumbers(); showScene(); showCharts(); showInterventions();
  }
  showAlarm(); showStop();
}

function showPhase() {
  const ending = state.ending, acting = ACTING.includes(state.phase);
  put("phase", ending ? ending.outcome : state.phase);
  byId("phase").className = "phase " + (ending ? (ending.outcome === "finished" ? "over" : "bad") : acting ? "acting" : "");
  put("message", ending ? `It ended in phase ${ending.phase ?? state.phase}.` : state.message || "Waiting for the rig.");
  const moves = byId("moves");
  moves.hidden = state.is_hardware === null;
  moves.classList.toggle("hardware", state.is_hardware === true);
  put("moves", state.is_hardware ? "real rig" : "simulated");
  const since = state.acting_since_s, now = state.now;
  const counting = since !== null && now !== null && !ending;
  put("remaining", counting ? `${Math.max(0, flight.seconds - (now.time_s - since)).toFixed(1)} s` : `${flight.seconds} s`);
  put("remaining-word", counting ? "left" : ending ? "asked for" : "will fly");
}

function limits() {
  const acting = ACTING.includes(state.phase), given = flight.limits;
  return {
    x: acting ? given.x_m : null, theta: acting ? given.theta_rad : null, volt: given.volt_in_phase[state.phase] ?? 0,
  };
}

function showNumbers() {
  const now = state.now, limit = limits();
  if (now === null) return;
  put("x", `${signed(1000 * now.x, 1)} mm`);
  put("theta", `${signed(degrees(now.theta), 1)}°`);
  // Where the rig was lost, nobody knows what it does.
  put("volt", over() && now.applied_volt !== 0 ? "not known" : `${signed(now.applied_volt, 2)} V`);
  byId("x").classList.toggle("beyond", limit.x !== null && Math.abs(now.x) > limit.x);
  byId("theta").classList.toggle("beyond", limit.theta !== null && Math.abs(now.theta) > limit.theta);
  byId("volt").classList.toggle("beyond", Math.abs(now.asked_volt) > limit.volt && limit.volt > 0);
  put("x-limit", limit.x === null ? "not watched in this phase" : `limit ±${(1000 * limit.x).toFixed(0)} mm`);
  put("theta-limit", limit.theta === null ? "not watched in this phase" : `limit ±${degrees(limit.theta).toFixed(1)}°`);
  put("volt-limit", `${limit.volt ? `limit ±${limit.volt} V` : "off in this phase"}, asked ${signed(now.asked_volt, 2)} V`);
  put("late", `${(1000 * now.late_s).toFixed(2)} ms`);
  put("busy", `${(1000 * now.busy_s).toFixed(2)} ms`);
  put("misses", `${now.misses}`);
  byId("misses").classList.toggle("some", now.misses > 0);
}

function showScene() {
  const now = state.now;
  if (now === null || now.x === null || now.theta === null) return;
  const x = Math.max(-1.05, Math.min(1.05, now.x / flight.limits.rail_m));
  byId("cart").setAttribute("transform", `translate(${500 + 450 * x} 132)`);
  // θ grows when an upright bob tips towards −x.
  byId("pole").setAttribute("transform", `rotate(${-degrees(now.theta)})`);
  byId("push").setAttribute("x2", (now.applied_volt ?? 0) / flight.limits.volt * 70);
}

function showInterventions() {
  byId("no-interventions").hidden = state.interventions.length > 0;
  const text = JSON.stringify(state.interventions);
  if (text === drawn) return;
  drawn = text;
  byId("interventions").tBodies[0].replaceChildren(...state.interventions.map((entry) => {
    const row = document.createElement("tr"), name = document.createElement("th"), count = document.createElement("td");
    const when = document.createElement("span");
    row.className = REDUCING.includes(entry.reason) ? "" : "fault";
    when.className = "when";
    when.textContent = entry.first_s === null ? "" : `from ${entry.first_s.toFixed(1)} s, last ${entry.last_s.toFixed(1)} s`;
    name.append(entry.reason.replaceAll("_", " "), when);
    count.textContent = `${entry.count}×`;
    row.append(name, count);
    return row;
  }));
}

function showAlarm() {
  const alarm = byId("alarm"), old = age();
  // What ended is not stale.
  const stale = !over() && (failure !== "" || (old !== null && old > STALE_S));
  let text = "", kind = "";
  if (over()) {
    const ending = state.ending;
    text = lost() ? ending.reason : `Flight over. ${ending.outcome.toUpperCase()}: ${ending.reason}`;
    if (ending.exit_code !== undefined) text += ` (exit code ${ending.exit_code})`;
    kind = OUTCOMES[ending.outcome] ?? "";
  } else if (askedMs !== null && !cut() && performance.now() - askedMs > 1000 * UNCONFIRMED_S) {
    text = "THE STOP IS NOT CONFIRMED. Press the emergency stop.";
  } else if (stale) {
    text = `No data for ${(old ?? 0).toFixed(1)} s` + (failure ? `: ${failure}. Look at the rig.` : ". Look at the rig.");
  } else if (cut()) {
    text = "The motor is cut.";
    kind = "care";
  }
  if (alarm.textContent !== text) alarm.textContent = text;
  alarm.className = kind;
  alarm.hidden = text === "";
  document.body.classList.toggle("stale", stale);
}

function showStop() {
  const button = byId("stop"), asked = askedMs !== null || (state !== null && state.stop_asked);
  button.disabled = over();
  button.classList.toggle("asked", asked);
  put("stop-word", lost() ? "No program" : over() ? "Flight over" : asked ? (cut() ? "STOPPED" : "STOPPING") : "STOP");
  put("stop-hint", lost() ? "nothing here can stop the rig" : over() ? "the program has let go of the rig" : "space or Esc");
}

// Charts

function showCharts() {
  const limit = limits(), given = flight.limits, acting = ACTING.includes(state.phase);
  chart("chart-x", "x", (p) => [p[1], p[1]], limit.x, given.rail_m, 1000);
  const reach = acting && given.theta_rad !== null ? 1.25 * given.theta_rad : Math.PI;
  chart("chart-theta", "theta", (p) => [p[2], p[2]], limit.theta, reach, 180 / Math.PI);
  chart("chart-volt", "voltage", (p) => [p[3], p[4]], limit.volt || null, 1.15 * given.volt, 1);
}

function chart(id, quantity, range, limit, reach, scale) {
  const canvas = byId(id), ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight, context = canvas.getContext("2d");
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const last = state.now === null ? 0 : state.now.time_s, left = 46, bottom = height - 4, top = 5;
  const ahead = 0.1 * WINDOW_S;
  const across = (time) => left + (time - last + WINDOW_S - ahead) / WINDOW_S * (width - left);
  const up = (value) => (top + bottom) / 2 - value / reach * (bottom - top) / 2;
  const label = (value) => {
    context.fillStyle = COLOURS.quiet;
    const text = value === 0 ? "0" : signed(value * scale, Math.abs(value * scale) < 10 ? 1 : 0).replace(".0", "");
    context.fillText(text, left - 6, Math.max(9, Math.min(height - 6, up(value))));
  };
  context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  context.textAlign = "right"; context.textBaseline = "middle";
  context.lineWidth = 1; context.strokeStyle = COLOURS.line;
  stroke(context, [[left, up(0)], [width, up(0)]]);
  const first = Math.max(0, last + ahead - WINDOW_S);
  for (let time = 5 * Math.ceil(first / 5); time <= last; time += 5) stroke(context, [[across(time), top], [across(time), bottom]]);
  context.save();
  context.beginPath(); context.rect(left, 0, width - left, height); context.clip();
  if (flight.band && state.acting_since_s !== null) fillBand(context, quantity, across, up);
  context.restore();
  if (limit !== null) {
    context.strokeStyle = COLOURS.limit; context.lineWidth = 1.5; context.setLineDash([7, 5]);
    for (const sign of [-1, 1]) stroke(context, [[left, up(sign * limit)], [width, up(sign * limit)]]);
    context.setLineDash([]);
  }
  const marked = limit === null ? reach : limit;
  // No room for three where the limit is small.
  for (const value of marked > 0.35 * reach ? [-marked, 0, marked] : [-marked, marked]) label(value);
  context.save();
  context.beginPath(); context.rect(left, 0, width - left, height); context.clip();
  context.strokeStyle = COLOURS.measured; context.lineWidth = 2; context.lineJoin = "round";
  drawCurve(context, range, across, up, quantity === "theta");
  context.restore();
}

function stroke(context, corners) {
  context.beginPath();
  corners.forEach(([x, y], number) => number ? context.lineTo(x, y) : context.moveTo(x, y));
  context.stroke();
}

function drawCurve(context, range, across, up, isAngle) {
  let before = null;
  context.beginPath();
  for (const point of points) {
    const [low, high] = range(point);
    // A gap where there was no number, and where an angle goes once round.
    if (low === null || high === null) { before = null; continue; }
    const x = across(point[0]);
    if (before === null || (isAngle && Math.abs(low - before) > Math.PI)) context.moveTo(x, up(low));
    else context.lineTo(x, up(low));
    if (high !== low) context.lineTo(x, up(high));
    before = high;
  }
  context.stroke();
}

function fillBand(context, quantity, across, up) {
  const pair = flight.band.ranges[quantity];
  if (!pair) return;
  const times = flight.band.time_s.map((time) => across(state.acting_since_s + time));
  context.fillStyle = COLOURS.band; context.globalAlpha = 0.28;
  // An angle's band may lie across ±π: once more, a whole turn away.
  for (const turn of quantity === "theta" ? [-2 * Math.PI, 0, 2 * Math.PI] : [0]) {
    const inside = pair[0].some((low, number) => Math.min(Math.abs(low + turn), Math.abs(pair[1][number] + turn)) <= Math.PI);
    if (turn !== 0 && !inside) continue;
    context.beginPath();
    times.forEach((x, number) => context.lineTo(x, up(pair[1][number] + turn)));
    for (let number = times.length - 1; number >= 0; number--) context.lineTo(times[number], up(pair[0][number] + turn));
    context.closePath(); context.fill();
  }
  context.globalAlpha = 1;
}

addEventListener("resize", show);
keepAsking();
