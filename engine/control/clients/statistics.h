/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Totals of what the clients of this host count in their channels (abi/statistics.h). Totals only
 * grow, also when channels come and go. A client may write anything there: what is impossible is
 * refused, and that channel is not read again. The loop's thread only.
 */
#ifndef CONTROL_STATISTICS_H
#define CONTROL_STATISTICS_H

#include "engine/abi/statistics.h"

/* What one channel has contributed so far. All zero when the channel is opened. */
struct statistics_source {
	struct statistics_words seen;
	uint32_t sequence; /* of `seen`; unchanged: no batch ended since then */
	uint64_t read_ns;  /* CLOCK_MONOTONIC of the last accepted reading, or of the opening */
	bool refused;
};

struct statistics {
	struct statistics_words total;
	uint64_t refused; /* channels whose figures were impossible */
};

/*
 * Adds what the channel counted since the last call. False: its figures are impossible (less than
 * before, sums that do not agree, or more than a thread can do since then); nothing of them is
 * added, now or later. A client that is writing at this moment is read at the next call.
 */
bool statistics_collect(struct statistics *statistics, struct statistics_source *source,
	const struct channel_statistics *area, uint64_t now_ns);

#endif
