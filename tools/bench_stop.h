/* SPDX-License-Identifier: Apache-2.0 */
/* What SIGINT and SIGTERM do to peercache-bench: it ends within a second. Main thread. */
#ifndef TOOLS_BENCH_STOP_H
#define TOOLS_BENCH_STOP_H

#include <signal.h>

/* A signal came after bench_stop_catch(): the measurement ends. */
extern volatile sig_atomic_t bench_stopped;

/* Until bench_stop_catch(), signals end the program: it has nothing to report yet. */
void bench_stop_default(void);
/*
 * From now on, signals set bench_stopped. A program that has not ended 0.8 s later ends without
 * results, because a call may wait for its deadline.
 */
void bench_stop_catch(void);

#endif
