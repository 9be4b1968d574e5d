"""The shop's pages as HTML, and what its forms do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from asyncrl.envs.browser.shop import MOST, Article, Order, Shop

MISSING = (404, "<h1>There is no such page</h1><a href='home'>Home</a>")


def answer(shop: Shop, page: str, fields: Mapping[str, str], post: bool) -> tuple[int, str]:
    """Return status and body of a page; for 303 the body is the target."""
    if page == "order" and post:
        return _order(shop, fields)
    if page == "home":
        return 200, _home(shop)
    if page == "search":
        text = fields.get("q", "")
        return 200, _page(f"Results for {text}", _list(shop, shop.find(text)))
    if page == "kind":
        kind = fields.get("name", "")
        return 200, _page(f"All of kind {kind}", _list(shop, [a for a in shop.articles if a.kind == kind]))
    if page == "news" and shop.level == 3:
        return 200, _page("News", f"<p>This week: coupon {shop.coupon} takes 5 off every order.</p>")
    if page == "item" and (article := shop.article(fields.get("id", ""))):
        return 200, _item(shop, article)
    if page == "thanks":
        return 200, _page("Thank you", "<p>Your order was received.</p>")
    return MISSING


def _order(shop: Shop, fields: Mapping[str, str]) -> tuple[int, str]:
    article = shop.article(fields.get("id", ""))
    count = fields.get("count", "1")
    if article is None or not count.isdecimal() or not 1 <= int(count) <= MOST:
        return MISSING
    person, coupon = fields.get("person", "").strip(), fields.get("coupon", "").strip()
    shop.orders.append(Order(article.id, int(count), person, coupon))
    return 303, "thanks"


def _home(shop: Shop) -> str:
    if shop.level == 1:
        return _page("Shop", _list(shop, shop.articles))
    kinds = "".join(f"<li><a href='kind?name={kind}'>{kind}</a></li>" for kind in shop.kinds())
    # Only a script opens the menu.
    menu = (
        "<button onclick=\"document.getElementById('menu').hidden=false; this.remove()\">Menu</button>"
        f"<ul id='menu' hidden>{kinds}</ul>"
    )
    search = "<form action='search'><input name='q' aria-label='Search'><button>Find</button></form>"
    news = "<a href='news'>News</a>" if shop.level == 3 else ""
    return _page("Shop", f"{search}{menu}{news}")


def _list(shop: Shop, articles: Iterable[Article]) -> str:
    rows = [f"<li><a href='item?id={a.id}'>{escape(a.name)}</a>{_facts(shop, a)}</li>" for a in articles]
    return f"<ul>{''.join(rows)}</ul>" if rows else "<p>Nothing found.</p>"


def _facts(shop: Shop, article: Article) -> str:
    return f" {article.colour}, {article.price}" if shop.level > 1 else ""


def _item(shop: Shop, article: Article) -> str:
    parts = [f"<input type='hidden' name='id' value='{article.id}'>"]
    if shop.level > 1:
        options = "".join(f"<option>{n}</option>" for n in range(1, MOST + 1))
        parts.append(f"<select name='count' aria-label='Count'>{options}</select>")
        # The button is enabled when a name has been typed.
        wake = "document.getElementById('go').disabled = !this.value.trim()"
        parts.append(f'<input name="person" aria-label="Name" oninput="{wake}">')
    if shop.level == 3:
        parts.append("<input name='coupon' aria-label='Coupon'>")
    parts.append(f"<button id='go' {'disabled' if shop.level > 1 else ''}>Order</button>")
    body = (
        f"<p>{article.colour}, {article.price}</p><form method='post' action='order'>{''.join(parts)}</form>"
    )
    return _page(article.name, body)


def _page(title: str, body: str) -> str:
    home = "" if title == "Shop" else "<a href='home'>Home</a>"
    return f"<!doctype html><title>{escape(title)}</title><h1>{escape(title)}</h1>{home}{body}"
