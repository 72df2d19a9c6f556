/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries for an owner that this engine has no connection with, although it is on the map: another
 * member passes them to it (directory_pass.c on that member and on the owner). Control plane's
 * thread only.
 *
 * At most one batch per owner is with a relay, and while it is, nothing is sent to the owner
 * directly. So no batch overtakes another one, except a relay that this engine has given up and
 * that arrives late. That one carries the serial of its batch, and the owner refuses it once it has
 * executed a newer batch of this holder. The entries of a relay that was given up are sent again,
 * so one that arrives before any newer batch only brings the same entries.
 *
 * A removal that waits for tombstones (DIR_FORGET) is not relayed.
 */
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

/* The link closed this long ago before relays begin, and a relay is late after twice this time. */
static uint64_t patience_ns(const struct directory *dir)
{
	return suspect_patience_ns(
		(uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull);
}

/* A member that may reach the owner, from peer number relay_turn on. NULL: there is none. */
static struct rpc_link *relay_find(struct directory *dir, struct owner *owner)
{
	unsigned peers = members_table(dir->control)->peers_used;

	for (unsigned n = 0; n < peers; n++) {
		unsigned peer = (owner->relay_turn + n) % peers;
		const struct member *entry = member_peer(dir->control, peer);

		if (!entry || !entry->relays || !member_link_of(entry) ||
			suspect_steers(owner_at(dir, (uint16_t)peer)->why))
			continue;
		owner->relay_turn = peer;
		return member_link_of(entry);
	}
	return NULL;
}

static bool batch_relay(struct directory *dir, const struct owner *owner, struct batch *batch)
{
	Pc__Relay relay = PC__RELAY__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	batch_entries(dir, batch);
	relay.serial = relay.order = batch->serial;
	relay.holder = dir->control->ref;
	relay.owner = owner->ref;
	relay.remove = batch->kind == DIR_REMOVE;
	relay.n_entries = batch->count;
	relay.entries = dir->entry_at;
	message.body_case = PC__MESSAGE__BODY_RELAY;
	message.relay = &relay;
	return rpc_send((struct rpc_link *)batch->via, &message);
}

void relay_send(struct directory *dir, struct owner *owner)
{
	uint64_t now_ns = net_now();
	unsigned kind = TAILQ_EMPTY(&owner->queue[DIR_PUBLISH]) ? DIR_REMOVE : DIR_PUBLISH;
	struct rpc_link *link;
	struct batch *batch;

	if (owner->relay || !owner->ref || TAILQ_EMPTY(&owner->queue[kind]) ||
		!owner->unlinked_ns || now_ns - owner->unlinked_ns < patience_ns(dir) ||
		owner->relay_tries >= RELAY_TRIES_MAX)
		return;
	/* A link that was closed because it was idle may be there soon. */
	if (!owner->relayed_ns && member_link_soon(dir->control, owner->ref) &&
		now_ns - owner->wait_ns < patience_ns(dir))
		return;
	link = relay_find(dir, owner);
	batch = link ? batch_take(owner, kind) : NULL;
	if (!batch)
		return;
	batch->serial = ++dir->serial;
	batch->sent_ns = now_ns;
	batch->via = link;
	if (!batch_relay(dir, owner, batch)) {
		batch_rewind(owner, batch);
		return;
	}
	owner->relay = batch;
	dir->relaying++;
	dir->control->counter[COUNTER_relays_sent]++;
}

struct batch *relay_end(struct directory *dir, struct owner *owner)
{
	struct batch *batch = owner->relay;

	owner->relay = NULL;
	dir->relaying--;
	return batch;
}

/* The relay was refused or is late: its entries are sent again, by another member. */
static void relay_failed(struct directory *dir, struct owner *owner)
{
	batch_rewind(owner, relay_end(dir, owner));
	owner->relay_turn++;
	owner->relay_tries++;
	if (owner->relay_tries >= RELAY_TRIES_MAX) {
		owner->relayed_ns = 0;
		waiters_check(dir, owner);
	}
	owner_dirty(dir, owner);
}

void relay_rewind(struct directory *dir, struct owner *owner, const struct rpc_link *link)
{
	if (owner->relay && (!link || owner->relay->via == link))
		relay_failed(dir, owner);
}

void relay_look(struct directory *dir, struct owner *owner, uint64_t now_ns)
{
	if (owner->relay && now_ns - owner->relay->sent_ns > 2 * patience_ns(dir))
		relay_failed(dir, owner);
	if (!owner->relay && owner->unlinked_ns)
		owner_dirty(dir, owner);
}

bool directory_serve_relayed(
	struct control *control, struct rpc_link *link, const Pc__Relayed *relayed)
{
	struct directory *dir = control->directory;
	struct owner *owner;
	struct batch *batch;

	if (relayed->n_failed > MESSAGE_PAGES_MAX)
		return false;
	if (pass_answered(dir, link, relayed))
		return true;
	STAILQ_FOREACH (owner, &dir->owners, next) {
		batch = owner->relay;
		if (batch && batch->serial == relayed->serial && batch->via == link)
			break;
	}
	/* The relay was given up. */
	if (!owner)
		return true;
	batch = owner->relay;
	if (!failed_fit(batch->count, relayed->n_failed, relayed->failed))
		return false;
	if (!relayed->done) {
		relay_failed(dir, owner);
		return true;
	}
	(void)relay_end(dir, owner);
	owner->relayed_ns = net_now();
	owner->relay_tries = 0;
	batch_resolve(dir, owner, batch, relayed->failed, relayed->n_failed);
	owner_dirty(dir, owner);
	if (owner->walk.slots)
		move_soon(dir);
	return true;
}
