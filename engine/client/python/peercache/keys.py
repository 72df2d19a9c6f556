# SPDX-License-Identifier: Apache-2.0
"""Namespaces: everything that a page's bytes depend on and that SGLang's page hash does not cover.

The text is the concatenation of named, escaped parts, so different lists of parts never give the
same text. The data-parallel rank is not a part: data-parallel ranks share pages.
"""

from dataclasses import dataclass
from typing import Any, Optional

VERSION = "pc1"


@dataclass(frozen=True)
class Shape:
    """How one page of a pool lies in memory."""

    segments: int
    page_bytes: int
    page_size: int
    layout: str
    dtype: str
    form: str = ""  # storage_format_tag: the pool's own page format, where it has one
    per_rank: bool = False  # the bytes differ by tensor-parallel rank although the KV is MLA


def name_space(config: Any, tag: str, pool: str, shape: Shape, *, flat: bool = False,
               rank: Optional[tuple[int, int]] = None) -> str:
    """Returns the namespace. flat: for the generic calls' order of bytes. rank: replaces (tp_rank,
    tp_size).
    """
    def field(name: str, default: Any) -> Any:
        value = getattr(config, name, None)
        return default if value is None else value

    if rank is None:
        rank = (field("tp_rank", 0), field("tp_size", 1))
    if field("is_mla_model", False) and not shape.per_rank:
        rank = (0, 1)
    parts = [
        ("model", field("model_name", "")), ("tag", tag), ("pool", pool),
        ("dtype", shape.dtype), ("layout", shape.layout), ("page", shape.page_size),
        ("segments", "flat" if flat else shape.segments), ("bytes", shape.page_bytes),
        ("tp", f"{rank[0]}/{rank[1]}"),
        ("pp", f"{field('pp_rank', 0)}/{field('pp_size', 1)}"),
        ("cp", f"{field('attn_cp_rank', 0)}/{field('attn_cp_size', 1)}"),
    ]
    if shape.form:
        parts.append(("form", shape.form))
    if field("dcp_size", 1) > 1:  # each decode-context rank has a share of every page
        parts += [("dcp", f"{field('dcp_rank', 0)}/{field('dcp_size', 1)}"),
                  ("logical_page", field("logical_page_size", 0)), ("dcp_tp", field("tp_size", 1))]
    return "|".join([VERSION] + [f"{name}={escape(str(value))}" for name, value in parts])


def escape(text: str) -> str:
    """Escapes the bar and NUL, so that neither can end a part early."""
    return text.replace("%", "%25").replace("|", "%7c").replace("\0", "%00")
