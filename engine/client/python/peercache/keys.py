# SPDX-License-Identifier: Apache-2.0
"""Namespaces of keys.

A namespace names everything that the bytes of a page depend on and that SGLang's page hash does not
cover: model, layers, layout, data type, ranks. libpeercache hashes it into every key. The text is a
concatenation of named, escaped parts, so different lists of parts never give the same text. The
data-parallel rank is not a part, because data-parallel ranks share pages.
"""

import os
from dataclasses import dataclass
from typing import Any, Optional

VERSION = "pc2"  # format of the namespaces; hosts share pages only if it is equal
GROUP_END = "||"  # behind the group in a namespace: KEY_GROUP_END of libpeercache


@dataclass(frozen=True)
class Shape:
    """Layout of one page of a pool in memory."""

    segments: int  # segments of a page; 0: not known
    page_bytes: int  # length of a page in bytes; 0: not known
    page_size: int  # tokens per page
    layout: str  # SGLang's name of the pool's layout, such as "page_first"
    dtype: str  # data type of the pool's elements, as text; see dtype_of() of pages.py
    form: str = ""  # the pool's storage_format_tag, its own page format; "": none
    per_rank: bool = False  # the bytes differ by tensor-parallel rank although the KV is MLA
    by_turns: bool = False  # the pool lists K and V by turns; the page has all K before all V
    # The pool's first layer: SGLang before 0.5.8 tells no pipeline rank. 0 also if it is not known.
    first_layer: int = 0


def name_space(config: Any, tags: tuple[str, str], pool: str, shape: Shape, *, flat: bool = False,
               rank: Optional[tuple[int, int]] = None) -> str:
    """Returns the namespace of a pool's pages.

    config: SGLang's HiCacheStorageConfig. tags: "prefix" and "extra_backend_tag" of the extra
    config. pool: name of the pool. flat: True for the generic calls, whose pages have another order
    of bytes. rank: (rank, size) to use in place of config's tp_rank and tp_size.
    """
    def field(name: str, default: Any) -> Any:
        value = getattr(config, name, None)
        return default if value is None else value

    if rank is None:
        rank = (field("tp_rank", 0), field("tp_size", 1))
    if field("is_mla_model", False) and not shape.per_rank:
        rank = (0, 1)
    parts = [
        ("model", field("model_name", "")), ("prefix", tags[0]), ("tag", tags[1]),
        ("pool", pool),
        ("dtype", shape.dtype), ("layout", shape.layout), ("page", shape.page_size),
        ("segments", "flat" if flat else shape.segments), ("bytes", shape.page_bytes),
        ("tp", f"{rank[0]}/{rank[1]}"),
        ("pp", f"{field('pp_rank', 0)}/{field('pp_size', 1)}"),
        ("cp", f"{field('attn_cp_rank', 0)}/{field('attn_cp_size', 1)}"),
    ]
    if shape.first_layer:
        parts.append(("first_layer", shape.first_layer))
    # A pool of states tells no first layer; with another partition, a stage has other layers.
    partition = os.environ.get("SGLANG_PP_LAYER_PARTITION")
    if partition and field("pp_size", 1) > 1:
        parts.append(("partition", partition))
    if shape.form:
        parts.append(("form", shape.form))
    if shape.by_turns:
        parts.append(("order", "k,v"))
    if field("dcp_size", 1) > 1:  # each decode-context rank has a share of every page
        parts += [("dcp", f"{field('dcp_rank', 0)}/{field('dcp_size', 1)}"),
                  ("logical_page", field("logical_page_size", 0)), ("dcp_tp", field("tp_size", 1))]
    text = "|".join([VERSION] + [f"{name}={escape(str(value))}" for name, value in parts])
    return text.replace("|pool=", GROUP_END + "pool=", 1)


def group(space: str) -> str:
    """The group of a namespace: model, prefix and tag. clear() removes the pages of a group."""
    return space.split(GROUP_END, 1)[0]


def escape(text: str) -> str:
    """Escapes the bar and NUL, so that neither can end a part early."""
    return text.replace("%", "%25").replace("|", "%7c").replace("\0", "%00")
