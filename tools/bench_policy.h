/* SPDX-License-Identifier: Apache-2.0 */
/* peercache-bench policy: bench_policy.c. */
#ifndef TOOLS_BENCH_POLICY_H
#define TOOLS_BENCH_POLICY_H

/* Runs the command, whose options begin at argv[1]. Returns the exit status. */
int bench_policy(int argc, char **argv);

#endif
