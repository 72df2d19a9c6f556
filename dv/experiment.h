/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experiments with a card: is it as this project's code assumes? They post with dv/hot.h what the
 * engine posts. The caller's thread, and one that writes to the memory which is READ.
 */
#ifndef DV_EXPERIMENT_H
#define DV_EXPERIMENT_H

#include <stdint.h>
#include <stdio.h>

#include "dv/setup.h"

struct dv_experiment {
	/* the two ends of a connection; the same device: a port to itself */
	struct dv_options end[2];
	uint64_t tries;   /* of the experiments that count */
	unsigned seconds; /* in which one of them ends, also with fewer tries */
};

/*
 * Runs all experiments and prints one JSON document a line. Negative: the devices cannot be used;
 * dv_error() says why.
 */
int dv_experiment_run(const struct dv_experiment *options, FILE *out);

#endif
