/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that the engine's NICs reach although no other process can map it. */
#ifndef CLIENT_VERBS_H
#define CLIENT_VERBS_H

#include <stdint.h>

struct client_session;
struct memory;

/*
 * Registers the range on all NICs of the engine and makes it a region. -EOPNOTSUPP, -EPERM: there
 * is no way, now or later; the error text says why. Others: as session_ask(). The caller holds
 * `wire`.
 */
int verbs_region_add(struct client_session *session, const struct memory *m, uint64_t until_ns,
	uint16_t *ret_region);
/*
 * While this process has descriptors of the engine's devices it may not fork(): the child would
 * keep them. The handlers of fork() hold this lock.
 */
void verbs_lock(void);
void verbs_unlock(void);

#endif
