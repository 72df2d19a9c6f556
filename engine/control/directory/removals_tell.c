/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a member that comes back which removals it has missed: see removals.h. */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/directory/removals_inner.h"

#define TELL_KEYS 4096u                /* keys that one member is sent at a time */
#define TELL_NS (3600ull * 1000000000) /* for one of these parts; a member that is gone ends it */

void telling_free(struct telling *t)
{
	LIST_REMOVE(t, next);
	free(t);
}

/* On all links with it: one of them may be dead. False: a link has no room, or there is none. */
static bool told_send(const struct telling *t, const struct member *member)
{
	struct rpc_link *const link[] = {member->contact->out, member->contact->in};
	Pc__Told told = PC__TOLD__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	bool sent = false;

	told.complete = t->complete;
	told.known = t->known;
	message.body_case = PC__MESSAGE__BODY_TOLD;
	message.told = &told;
	for (unsigned i = 0; i < 2; i++) {
		if (link[i] && !rpc_send(link[i], &message))
			return false;
		sent |= link[i] != NULL;
	}
	return sent;
}

static void on_forgotten(void *context, uint64_t cookie, enum op_status status);

static void keys_send(struct telling *t)
{
	struct removals *r = t->removals;
	const struct waiter waiter = {
		.deadline_ns = net_now() + TELL_NS, .done = on_forgotten, .context = t};
	uint64_t end = t->end - t->at > TELL_KEYS ? t->at + TELL_KEYS : t->end;

	/* without memory the answer comes at once: the last one must not free `t` here */
	t->waits = 1;
	for (; t->at < end; t->at++) {
		const struct removal *removal = &r->log->removal[t->at % REMOVALS_MAX];

		if (page_key_none(&removal->key))
			continue;
		t->waits++;
		directory_forget_at(r->control, removal, t->ref, &waiter);
	}
}

void telling_step(struct telling *t)
{
	struct removals *r = t->removals;
	const struct member *member = member_table_ref(members_table(r->control), t->ref);
	struct removals_name *name;

	if (t->waits)
		return;
	/* what was not sent yet may have been overwritten */
	if (t->at + REMOVALS_MAX < r->log->head) {
		t->complete = false;
		t->at = r->log->head - REMOVALS_MAX;
	}
	if (t->failed || !member) {
		telling_free(t);
		return;
	}
	while (t->at < t->end && !t->failed) {
		keys_send(t);
		if (--t->waits)
			return;
	}
	if (t->failed || !told_send(t, member))
		return;
	name = removals_find(r, t->name);
	if (name)
		name->at = REMOVALS_PRESENT;
	telling_free(t);
}

static void on_forgotten(void *context, uint64_t cookie, enum op_status status)
{
	struct telling *t = context;

	(void)cookie;
	/* OP_PEER_DOWN: its disk has not recorded the removal, or the member has left */
	t->failed |= status != OP_HIT && status != OP_MISS && status != OP_PEER_DOWN;
	if (--t->waits == 0)
		telling_step(t);
}

void telling_begin(struct removals *r, const struct member *member, bool pages)
{
	uint64_t hash = removals_hash(member), head = r->log->head;
	struct removals_name *name = removals_find(r, hash);
	struct telling *t;

	LIST_FOREACH (t, &r->tellings, next)
		if (t->ref == member->record.ref)
			return;
	t = calloc(1, sizeof(*t));
	if (!t) {
		log_error("no memory to tell a member what was removed while it was away");
		return;
	}
	t->removals = r;
	t->name = hash;
	t->ref = member->record.ref;
	t->end = head;
	t->known = name && name->at;
	t->at = !t->known ? 1 : name->at == REMOVALS_PRESENT ? head : name->at;
	t->complete = head - t->at <= REMOVALS_MAX;
	if (!pages)
		t->at = t->end;
	else if (!t->complete)
		t->at = head - REMOVALS_MAX;
	LIST_INSERT_HEAD(&r->tellings, t, next);
	telling_step(t);
}
