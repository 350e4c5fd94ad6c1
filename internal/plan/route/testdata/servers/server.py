"""Starts servers of several frameworks on free ports of 127.0.0.1, each with the handlers of its first argument: a JSON
object of names and patterns such as "/product/{id}". Prints a line "NAME VERSION PORT" for each server, and ends when
its standard input does. A handler answers with its name, and with "empty" if its last parameter is empty."""

import asyncio
import importlib.metadata
import json
import logging
import os
import re
import socket
import sys
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

HANDLERS = json.loads(sys.argv[1])
logging.disable(logging.CRITICAL)


def answer(name, params):
    return name + (" empty" if params and list(params.values())[-1] == "" else "")


def translated(pattern, one, rest):
    """The pattern in the syntax of a framework: one stands for a parameter, rest for the tail."""
    return re.sub(r"\{(\w+)\}", one, pattern).replace("**", rest)


def flask_app():
    from flask import Flask

    app = Flask("flask")
    for name, pattern in HANDLERS.items():
        handler = lambda name=name, **params: answer(name, params)
        app.add_url_rule(translated(pattern, r"<\1>", "<path:rest>"), name, handler)
    return app


def django_app():
    import django
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path

    def view(name):
        return lambda request, **params: HttpResponse(answer(name, params))

    urls = [path(translated(p, r"<\1>", "<path:rest>")[1:], view(n)) for n, p in HANDLERS.items()]
    settings.configure(ROOT_URLCONF=type("urls", (), {"urlpatterns": urls}), ALLOWED_HOSTS=["*"], SECRET_KEY="tests")
    return get_wsgi_application()


def falcon_app():
    import falcon

    class Resource:
        def __init__(self, name):
            self.name = name

        def on_get(self, request, response, **params):
            response.text = answer(self.name, params)

    app = falcon.App()
    for name, pattern in HANDLERS.items():
        app.add_route(pattern.replace("**", "{rest:path}"), Resource(name))
    return app


def bottle_app():
    import bottle

    app = bottle.Bottle()
    for name, pattern in HANDLERS.items():
        handler = lambda name=name, **params: answer(name, params)
        app.route(translated(pattern, r"<\1>", "<rest:path>"), "GET", handler)
    return app


def serve_wsgi(name, app):
    class Quiet(WSGIRequestHandler):
        def log_message(self, *args):
            pass

    server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
    report(name, server.server_port)
    server.serve_forever()


def serve_flask(name):
    from werkzeug.serving import WSGIRequestHandler as Handler, make_server as make

    Handler.log = lambda *args: None
    server = make("127.0.0.1", 0, flask_app(), request_handler=Handler)
    report(name, server.port)
    server.serve_forever()


def serve_starlette(name):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def route(name, pattern):
        async def handler(request):
            return PlainTextResponse(answer(name, request.path_params))

        return Route(pattern.replace("**", "{rest:path}"), handler)

    app = Starlette(routes=[route(n, p) for n, p in HANDLERS.items()])
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # without proto, asyncio sets no TCP_NODELAY
    listener.bind(("127.0.0.1", 0))
    report(name, listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run([listener])


async def serve_aiohttp(name):
    from aiohttp import web

    def handler(name):
        async def handle(request):
            return web.Response(text=answer(name, dict(request.match_info)))

        return handle

    app = web.Application()
    for handler_name, pattern in HANDLERS.items():
        app.router.add_get(pattern.replace("**", "{rest:.*}"), handler(handler_name))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    report(name, runner.addresses[0][1])
    await asyncio.Event().wait()


async def serve_tornado(name):
    from tornado.web import Application, RequestHandler

    class Handler(RequestHandler):
        def initialize(self, name):
            self.name = name

        def get(self, *params):
            self.write(answer(self.name, dict(enumerate(params))))

    urls = [(translated(p, r"([^/]+)", "(.*)"), Handler, {"name": n}) for n, p in HANDLERS.items()]
    server = Application(urls).listen(0, "127.0.0.1")
    report(name, next(iter(server._sockets.values())).getsockname()[1])
    await asyncio.Event().wait()


def report(name, port):
    line = f"{name} {importlib.metadata.version(name)} {port}\n"
    os.write(1, line.encode())  # in one call, so that the lines of several threads do not mix


SERVERS = {
    "flask": lambda name: serve_flask(name),
    "django": lambda name: serve_wsgi(name, django_app()),
    "falcon": lambda name: serve_wsgi(name, falcon_app()),
    "bottle": lambda name: serve_wsgi(name, bottle_app()),
    "starlette": lambda name: serve_starlette(name),
    "aiohttp": lambda name: asyncio.run(serve_aiohttp(name)),
    "tornado": lambda name: asyncio.run(serve_tornado(name)),
}
for name, serve in SERVERS.items():
    threading.Thread(target=serve, args=(name,), daemon=True).start()
sys.stdin.read()
os._exit(0)
