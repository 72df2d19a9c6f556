/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the part of peercache-bench that is written in Python. Main thread, before any other thread
 * exists.
 */
#ifndef TOOLS_BENCH_PYTHON_H
#define TOOLS_BENCH_PYTHON_H

/*
 * Returns if the C program measures what the options say: get, set or exists without `--api
 * python`. Otherwise replaces the process by the Python program, or calls die() with the reason.
 */
void bench_python(int argc, char **argv);

#endif
