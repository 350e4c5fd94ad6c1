'use strict';

const percent = (n, of) => {
  if (!of) return '\u00a0';
  const p = 100 * n / of;
  return (p > 0 && p < 1 ? '< 1' : p > 99 && p < 100 ? '> 99' : Math.round(p)) + ' %';
};

// Traffic

function tiles(t) {
  const limited = t.limited + t.ip_limited, other = t.forbidden + t.not_found + t.store_failed;
  const put = (name, n, sub) => {
    number(document.querySelector('.tiles [data-total="' + name + '"]'), n, name === 'limited');
    text($('sub-' + name), sub);
  };
  const each = t.requests / 600;
  put('requests', t.requests, each >= 10 ? Math.round(each) + ' per second' : each > 0 ? each.toFixed(each < 1 ? 2 : 1) + ' per second' : 'none yet');
  put('allowed', t.allowed, percent(t.allowed, t.requests));
  put('limited', limited, t.ip_limited ? whole.format(t.ip_limited) + ' by address' : percent(limited, t.requests));
  put('unauthorized', t.unauthorized, percent(t.unauthorized, t.requests));
  const parts = [[t.not_found, 'no route'], [t.forbidden, 'forbidden'], [t.store_failed, 'store away']];
  put('other', other, parts.filter((p) => p[0]).map((p) => whole.format(p[0]) + ' ' + p[1]).join(', ') || '\u00a0');
  $('away-key').hidden = !t.degraded;
  text($('away-count'), amount(t.degraded) + ' decided without the store');
}

// Tenants

const names = {
  anonymous: ['No credential', 'the anonymous plan'],
  nobody: ['No tenant', 'ended before one was known'],
  others: ['All others', 'counted together'],
};
const limited = (c) => c.limited + c.ip_limited;

function tenantRow(t) {
  const node = el('div', 'trow');
  node.setAttribute('role', 'row');
  const cell = (className, label) => {
    const c = el('div', className, undefined, node);
    c.setAttribute('role', label ? 'cell' : 'rowheader');
    if (label) c.dataset.label = label;
    return c;
  };
  const who = cell('who');
  if (t.kind === 'tenant') {
    node.dataset.tenant = t.id;
    el('bdi', '', t.id, who);
  } else {
    node.dataset.kind = t.kind;
    el('span', 'special', names[t.kind][0], who);
  }
  const plan = el('small', '', '', who), off = el('span', 'tag', 'suspended', who);
  const allowed = cell('num', 'Allowed'), denied = cell('num', 'Limited'), other = cell('num', 'Other');
  const meters = cell('meters', 'Use of limits');
  return { node, update(t) {
    const c = t.counts;
    text(plan, t.kind !== 'tenant' ? names[t.kind][1] : t.configured ? t.plan || '\u00a0' : 'no longer configured');
    off.hidden = !t.suspended;
    number(allowed, c.allowed);
    number(denied, limited(c), true);
    number(other, c.requests - c.allowed - limited(c));
    const limit = (m) => m && keyOf(m.id, m.mode, m.per, m.applies);
    const tiers = t.limits.map((m, i) => ({ ...m,
      first: limit(m) !== limit(t.limits[i - 1]), last: limit(m) !== limit(t.limits[i + 1]) }));
    sync(meters, tiers, (m) => keyOf(limit(m), m.tier, m.algorithm, m.first, m.last, m.used < 0), meterRow);
  } };
}

// The tiers of a limit stand together: its name at the first, which requests it is for below the last.
function meterRow(m) {
  const node = el('div', 'meter-row'), what = el('div', 'what', '', node);
  el('span', m.first ? '' : 'hide', m.id, what);
  if (m.first && m.mode && m.mode !== 'enforce') el('span', 'tag', m.mode, what);
  el('div', 'tier', m.tier, node);
  const where = () => {
    if (m.last && m.applies && m.applies !== 'every route') el('bdi', 'applies mono', m.applies, el('div', 'where', undefined, node));
  };
  if (m.used < 0) {
    const apart = el('div', 'apart', '', node);
    where();
    return { node, update: (m) => text(apart, whole.format(m.capacity) + unitOf(m) +
      (m.per !== 'tenant' ? ' for each ' + m.per.replaceAll('_', ' ') : m.mode === 'off' ? ': not counted' : ': use not known') +
      (m.leased > 0 ? ', ' + compact(m.leased) + ' leased' : '')) };
  }
  const track = el('div', 'track', undefined, node), fill = el('i', '', undefined, track), held = el('i', 'held', undefined, track);
  track.setAttribute('role', 'meter');
  track.setAttribute('aria-label', m.id + ' ' + m.tier);
  track.setAttribute('aria-valuemin', '0');
  const use = el('div', 'use', undefined, node), used = el('span', '', '', use), of = el('span', 'of', '', use);
  const reset = el('div', 'reset', '', node);
  where();
  return { node, update(m) {
    const part = m.capacity > 0 ? Math.min(1, m.used / m.capacity) : 0;
    const full = m.used >= m.capacity && m.mode !== 'shadow', leased = m.leased > 0 ? m.leased : 0;
    const says = whole.format(m.used) + ' of ' + whole.format(m.capacity) + unitOf(m) + ' used' +
      (leased ? ', ' + whole.format(leased) + ' more leased here' : '');
    track.setAttribute('aria-valuemax', m.capacity);
    track.setAttribute('aria-valuenow', Math.min(m.used, m.capacity));
    track.setAttribute('aria-valuetext', says);
    track.title = says;
    track.classList.toggle('full', full);
    fill.style.width = (m.used > 0 ? Math.max(2, 100 * part) : 0) + '%';
    held.style.width = m.capacity > 0 ? Math.min(1 - part, leased / m.capacity) * 100 + '%' : 0;
    text(used, compact(m.used));
    used.classList.toggle('hot', full);
    text(of, ' / ' + compact(m.capacity) + unitOf(m));
    text(reset, m.used > 0 && m.reset_ms > 0 ? duration(m.reset_ms) : '');
  } };
}
const unitOf = (m) => m.unit ? ' ' + m.unit : '';
const compact = (n) => n < 100000 ? whole.format(n) : short.format(n);

function tenants(d) {
  const rows = d.tenants.filter((t) => t.kind === 'tenant' || t.counts.requests > 0);
  sync($('tenant-rows'), rows, (t) => keyOf(t.kind, t.id), tenantRow);
  $('tenants').hidden = rows.length === 0;
  $('tenants-empty').hidden = rows.length > 0;
  const leased = rows.some((t) => t.limits.some((m) => m.leased > 0));
  text($('tenants-note'), d.tenants_not_listed > 0
    ? whole.format(d.gateway.tenants) + ' configured; ' + whole.format(d.tenants_not_listed) + ' quieter ones are not listed'
    : 'bars: use now' + (leased ? ', with what other processes have leased; striped: leased here, not used yet' : '') + '; and the time to reset');
}

// Limits and denials

function limitRow(l) {
  const node = el('tr');
  const head = el('th', '', undefined, node);
  head.scope = 'row';
  if (l.kind === 'others') el('span', 'special', 'All others', head);
  else {
    node.dataset.limit = l.id;
    el('span', '', l.id, head);
  }
  node.dataset.kind = l.kind;
  if (l.kind === 'ip_limit') el('span', 'tag', 'by address', head);
  for (const mode of l.modes) if (mode !== 'enforce') el('span', 'tag', mode, head);
  const cells = ['allowed', 'denied', 'shadow_denied'].map((k) => [k, el('td', 'num', '', node)]);
  return { node, update: (l) => cells.forEach(([k, td]) => number(td, l.counts[k], k === 'denied')) };
}
function limits(d) {
  sync($('limit-rows'), d.limits, (l) => keyOf(l.kind, l.id, l.modes), limitRow);
  $('limits').hidden = d.limits.length === 0;
  $('limits-empty').hidden = d.limits.length > 0;
}

// Cells that share the limits

function fleetRow() {
  const node = el('tr'), name = el('th', '', '', node);
  name.scope = 'row';
  const link = el('a', '', '', name), here = el('span', 'tag', 'this one', name);
  const [state, weight, epoch, head, behind, grants] = ['', 'num', '', 'num', 'num', ''].map((c) => el('td', c, '', node));
  return { node, update(c) {
    node.dataset.cell = c.name;
    text(link, c.name);
    if (/^http:\/\//.test(c.url)) link.href = c.url + '/_sluice/';
    else link.removeAttribute('href');
    here.hidden = !c.here;
    text(state, c.state + (c.awaited ? ', awaited' : ''));
    number(weight, c.weight);
    text(epoch, c.epoch ? 'epoch ' + c.epoch + ', ' + c.phase : 'none yet');
    number(head, c.head);
    number(behind, c.behind, true);
    const granted = list(c.limits).map((l) => l.id + ' ' + l.tier + ': ' + amount(l.share) + ' of ' +
      amount(l.capacity) + unitOf(l));
    text(grants, granted.join(' · ') || '–');
  } };
}
function fleet(d) {
  const cells = list(d.cells).filter(Boolean);
  $('fleet').hidden = cells.length === 0;
  if (!cells.length) return;
  const of = cells.map((c) => list(c.limits)[0]).find(Boolean);
  text($('fleet-note'), of ? 'what each may grant to ' + of.tenant + ', the busiest here' : 'that share the limits of tenants');
  sync($('fleet-rows'), cells, (c) => keyOf(c.name), fleetRow);
}

// Shared stores that do not answer

function away(d) {
  const names = list(d.away);
  $('away').hidden = names.length === 0;
  text($('away-h'), names.join(' and ') + (names.length > 1 ? ' do' : ' does') + ' not answer: limits are counted in this process');
}

// Equal denials are one line with their number, so that a client which hammers does not push the others out of sight.
function denials(d) {
  const groups = new Map();
  for (const x of d.denials) {
    const key = keyOf(x.kind, x.tenant, x.method, x.path, x.limit, x.tier, x.reason, x.by, x.wait_ms < 0);
    const g = groups.get(key);
    if (g) g.count++;
    else groups.set(key, { key, count: 1, last: x });
  }
  const all = [...groups.values()];
  const since = (g) => Math.floor(g.last.at_ms / 10000); // not to change places with every request
  all.sort((a, b) => since(b) - since(a) || b.count - a.count || (a.key < b.key ? -1 : 1));
  sync($('denial-rows'), all.slice(0, 40), (g) => g.key, denialRow);
  $('denials-empty').hidden = all.length > 0;
  text($('denials-note'), all.length > 40 ? 'the last ' + d.denials.length + ', 40 of ' + all.length + ' kinds'
    : d.denials.length > 1 ? 'the last ' + d.denials.length + ', equal ones together' : '');
}
function denialRow({ last: x }) {
  const node = el('li');
  const time = el('time', '', '', node), body = el('div', '', undefined, node), times = el('div', 'times', undefined, node);
  const req = el('div', 'req mono', undefined, body);
  req.append(x.method + ' ');
  el('bdi', '', x.path, req);
  const why = el('div', 'why', undefined, body);
  el('b', '', x.limit || x.reason || 'reason not known', why);
  why.append((x.tier ? ' ' + x.tier : '') + (x.limit && x.reason ? ' · ' + x.reason : '') + ' · ');
  if (x.kind === 'tenant') el('bdi', '', x.tenant, why);
  else why.append(x.by === 'ip_limits' ? 'by address' : names[x.kind][0].toLowerCase());
  const count = el('span', '', '', times), wait = el('small', '', '', times);
  node.dataset.limit = x.limit;
  return { node, update(g) {
    text(time, clock(g.last.at_ms));
    time.dateTime = new Date(g.last.at_ms).toISOString();
    text(count, '× ' + whole.format(g.count));
    node.dataset.count = g.count;
    text(wait, g.last.wait_ms < 0 ? 'never fits' : g.last.wait_ms > 0 ? 'wait ' + duration(g.last.wait_ms) : '');
  } };
}

// The header

function header(d) {
  const g = d.gateway;
  text($('plans'), g.plans_file || 'built in');
  text($('loaded'), g.loaded_ms ? clock(g.loaded_ms) : 'not yet');
  text($('gateway'), (g.listen || location.host) + ' → ' + g.upstream);
  text($('bytes'), g.store_bytes < 1024 ? g.store_bytes + ' B' : g.store_bytes < 1048576
    ? (g.store_bytes / 1024).toFixed(0) + ' KB' : (g.store_bytes / 1048576).toFixed(1) + ' MB');
  $('trouble').hidden = !g.last_reload_error;
  text($('trouble-error'), g.last_reload_error);
  text($('trouble-text'), g.loaded_ms ? 'The plans loaded at ' + clock(g.loaded_ms) + ' stay in force. Correct the file; it is read again when you save it.' : 'Correct the file; it is read again when you save it.');
  const first = d.totals.requests === 0 && d.denials.length === 0;
  $('try').hidden = !first;
  const origin = 'http://' + (g.listen || location.host) + '/';
  sync($('commands'), g.try.length ? g.try : ['curl -i ' + origin], keyOf, (c) => ({ node: el('pre', '', c), update() {} }));
}

function show() {
  header(data);
  away(data);
  fleet(data);
  tiles(data.totals);
  tenants(data);
  limits(data);
  denials(data);
  root.dataset.now = data.now_ms; // what a test waits for
}

start(show);
