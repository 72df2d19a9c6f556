# SPDX-License-Identifier: Apache-2.0
"""peercache-bench, the part in Python: measures PeerCacheStore as SGLang calls it.

The C program of the same name runs this package for all commands but get, set and exists.
options.py reads the command line. engines.py starts the engines of a run. clients.py starts client
processes; client.py is one of them, and hostpool.py its host pool. sweep.py decides what is
measured, hosts.py does it on two hosts, micro.py beside the client library. rows.py makes rows of
results, report.py and compare.py write them, plot.py draws. served.py measures servers of SGLang:
it sends dialogues.py to each server.py, and turns.py has the results.
"""
