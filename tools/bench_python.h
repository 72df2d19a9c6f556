/* SPDX-License-Identifier: Apache-2.0 */
/* Runs `peercache-bench --api python`. Main thread, before any other thread exists. */
#ifndef TOOLS_BENCH_PYTHON_H
#define TOOLS_BENCH_PYTHON_H

/*
 * Returns if the options do not contain `--api python`; otherwise replaces the process by the
 * Python benchmark, or calls die() with the reason.
 */
void bench_python(int argc, char **argv);

#endif
