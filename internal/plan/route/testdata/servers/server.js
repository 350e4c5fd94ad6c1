// Starts servers of several frameworks on free ports of 127.0.0.1, each with the handlers of its first argument: a
// JSON object of names and patterns such as "/product/{id}". Prints a line "NAME VERSION PORT" for each server, and ends
// when its standard input does. A handler answers with its name, and with "empty" if its last parameter is empty.
// NODE_PATH is the folder of the frameworks.
'use strict';
const http = require('http');

const handlers = Object.entries(JSON.parse(process.argv[2]));
const answer = (name, params) => name + (Object.values(params).at(-1) === '' ? ' empty' : '');
const colons = (pattern, rest) => pattern.replace(/\{(\w+)\}/g, ':$1').replace('**', rest);
const version = (name) => require(`${process.env.NODE_PATH}/${name}/package.json`).version;

const report = (name, folder) => (server) => {
  server.on('clientError', (err, socket) => socket.end('HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n'));
  const listening = () => console.log(name, version(folder), server.address().port);
  server.listening ? listening() : server.listen(0, '127.0.0.1', listening);
};

for (const name of ['express4', 'express']) {
  const app = require(name)();
  for (const [handler, pattern] of handlers) {
    app.get(colons(pattern, name === 'express' ? '*rest' : '*'), (q, r) => r.end(answer(handler, q.params)));
  }
  report(name, name)(http.createServer(app));
}

for (const name of ['fastify4', 'fastify']) {
  const app = require(name)();
  for (const [handler, pattern] of handlers) {
    app.get(colons(pattern, '*'), (q, r) => r.send(answer(handler, q.params)));
  }
  app.listen({ port: 0, host: '127.0.0.1' }).then(() => report(name, name)(app.server));
}

{
  const { Hono } = require('hono');
  const app = new Hono();
  for (const [handler, pattern] of handlers) {
    app.get(colons(pattern, '*'), (c) => c.text(answer(handler, c.req.param())));
  }
  report('hono', 'hono')(require('@hono/node-server').createAdaptorServer({ fetch: app.fetch }));
}

{
  const Koa = require('koa');
  const Router = require('@koa/router');
  const app = new Koa();
  const router = new Router();
  app.silent = true;
  for (const [handler, pattern] of handlers) {
    router.get(colons(pattern, '{*rest}'), (c) => { c.body = answer(handler, c.params); });
  }
  app.use(router.routes());
  report('koa', 'koa')(http.createServer(app.callback()));
}

{
  const app = require('polka')();
  for (const [handler, pattern] of handlers) {
    app.get(colons(pattern, '*'), (q, r) => r.end(answer(handler, q.params)));
  }
  report('polka', 'polka')(http.createServer(app.handler));
}

{
  const app = require('restify').createServer({ handleUncaughtExceptions: false });
  for (const [handler, pattern] of handlers) {
    app.get(colons(pattern, '*'), (q, r, next) => { r.end(answer(handler, q.params)); next(); });
  }
  app.listen(0, '127.0.0.1', () => report('restify', 'restify')(app.server));
}

{
  const app = require('@hapi/hapi').server({ port: 0, host: '127.0.0.1' });
  for (const [handler, pattern] of handlers) {
    app.route({ method: 'GET', path: pattern.replace('**', '{rest*}'), handler: (q) => answer(handler, q.params) });
  }
  app.start().then(() => report('hapi', '@hapi/hapi')(app.listener));
}

process.stdin.resume().on('end', () => process.exit());
