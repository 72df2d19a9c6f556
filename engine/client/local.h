/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of this host. Channel thread. */
#ifndef CLIENT_LOCAL_H
#define CLIENT_LOCAL_H

#include "engine/client/peercache.h"

struct client_session;
struct location;
struct page_key;
struct page_work;
struct pc_channel;

/* Copies a page of this host. *ret_corrupt: PC_STALE, for the CRC of the head. */
enum pc_result local_get(struct pc_channel *ch, const struct page_work *p,
	const struct pc_page *page, bool *ret_corrupt);
/* Returns the length of the page that is at `at` now, bytes; 0: it is not there. */
uint32_t local_length(const struct client_session *session, const struct page_key *key,
	const struct location *at);

#endif
