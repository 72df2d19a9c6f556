# SPDX-License-Identifier: Apache-2.0
"""The part of peercache-bench that only Python can measure; the C program of that name runs it.

calls.py makes calls through the class that SGLang calls (get, set, exists, exists-get with --api
python), with the pages of hostpool.py and the latencies of histogram.py. served.py measures servers
of SGLang: it sends dialogues.py to each server.py; turns.py has the results, report.py writes them,
plot.py draws. options.py reads the command line, stop.py ends a run early.
"""
