# SPDX-License-Identifier: Apache-2.0
"""peercachectl trial: what a host with NICs shows in its first hour, as one report.

`frame` runs the steps, `report` writes what they found. `host` looks, `engines` starts engines of
the trial's own, `measure` reads pages through them, `card` has the experiments with a NIC,
`link` takes a port down, `peer` calls the other host, `served` starts servers, `claims` compares
with what this project says of itself. Standard library only.
"""
