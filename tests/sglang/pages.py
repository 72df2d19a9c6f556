# SPDX-License-Identifier: Apache-2.0
"""Reads and writes pages of SGLang's host pools, and makes the bytes that tests write to them."""

import ctypes

import torch


class HostPage:
    """A page of a host pool, given by the token indices of the page.

    It is accessed by its addresses, or through the pool's own methods if the pool gives none.
    nbytes: its length in bytes.
    """

    def __init__(self, pool, indices):
        self.pool, self.first, self.segments = pool, int(indices[0]), None
        try:
            meta = pool.get_page_buffer_meta(indices)
            self.segments = list(zip(*meta)) if meta else []
            self.nbytes = sum(nbytes for _, nbytes in self.segments)
        except (ValueError, NotImplementedError):
            page = pool.get_dummy_flat_data_page()
            self.nbytes = page.numel() * page.element_size()

    def write(self, data):
        if self.segments is None:
            page = self.pool.get_dummy_flat_data_page()
            page.view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            self.pool.set_from_flat_data_page(self.first, page)
            return
        for address, nbytes in self.segments:
            ctypes.memmove(address, data[:nbytes], nbytes)
            data = data[nbytes:]

    def read(self):
        if self.segments is None:
            page = self.pool.get_data_page(self.first, flat=True)
            return page.contiguous().view(torch.uint8).numpy().tobytes()
        return b"".join(ctypes.string_at(*segment) for segment in self.segments)


def content(seed, what, rank):
    """Returns a function that makes n bytes, determined by the three arguments and n."""
    def make(nbytes):
        generator = torch.Generator().manual_seed(
            hash_of(f"{seed}/{what}/{rank}") & 0x7fffffffffffffff)
        return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator) \
            .numpy().tobytes()
    return make


def hash_of(text):
    """FNV-1a hash of 64 bits, which is equal in all processes."""
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value
