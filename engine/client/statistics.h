/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics area of a channel. Channel thread. */
#ifndef CLIENT_STATISTICS_H
#define CLIENT_STATISTICS_H

struct pc_batch;

/* Counts a batch that has ended, in the segment of the channel. */
void statistics_batch(const struct pc_batch *b);

#endif
