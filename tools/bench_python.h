/* SPDX-License-Identifier: Apache-2.0 */
/* peercache-bench --api python. Main thread, before any other thread exists. */
#ifndef TOOLS_BENCH_PYTHON_H
#define TOOLS_BENCH_PYTHON_H

/* Returns if the options do not contain `--api python`; otherwise runs it, or dies saying why. */
void bench_python(int argc, char **argv);

#endif
