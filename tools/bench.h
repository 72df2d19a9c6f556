/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of peercache-bench that have files of their own. */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

/* Each runs the command, whose options begin at argv[1]. Returns the exit status. */
int bench_policy(int argc, char **argv);
int bench_replay(int argc, char **argv);

#endif
