/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relays of other engines (directory_relay.c): this engine passes them to their owner, or is the
 * owner. Control plane's thread only.
 *
 *      holder               this engine              owner
 *      Relay, serial a  ->  Relay, serial b      ->  executes the batch as the holder's
 *                       <-  Relayed, serial a    <-  Relayed, serial b
 *
 * The entries are not kept here: a relay whose owner's link closes is refused, and its holder sends
 * it again. Until members prove who they are, a member can relay entries in the name of any other
 * one, as it can send Remove for any entry: readers find these entries wrong by their page heads.
 */
#include <stdlib.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

static void answer(
	struct rpc_link *link, uint64_t serial, bool done, size_t count, uint32_t *failed)
{
	Pc__Relayed relayed = PC__RELAYED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	relayed.serial = serial;
	relayed.done = done;
	relayed.n_failed = count;
	relayed.failed = failed;
	message.body_case = PC__MESSAGE__BODY_RELAYED;
	message.relayed = &relayed;
	rpc_reply(link, &message);
}

static bool refuse(struct control *control, struct rpc_link *link, const Pc__Relay *relay)
{
	control->counter[COUNTER_relays_refused]++;
	answer(link, relay->serial, false, 0, NULL);
	return true;
}

/* ---- the owner ------------------------------------------------------------------------------- */

/*
 * The holder has no link with this engine, so the links of this end are dead, and what may still
 * come over them is older than the relay. A link that is younger than the relay may be is kept.
 */
static void links_close(struct control *control, const struct member *holder)
{
	uint64_t young_ns = suspect_patience_ns(
		(uint64_t)control->settings->cluster_dead_after_ms * 1000000ull);
	struct rpc_link *link[] = {holder->contact->out, holder->contact->in};

	for (unsigned i = 0; i < 2; i++)
		if (link[i] && net_now() - link[i]->up_ns >= young_ns)
			rpc_link_close(link[i]);
}

static bool removable(const Pc__Relay *relay)
{
	for (size_t i = 0; i < relay->n_entries; i++)
		if (relay->entries[i]->ref == 0)
			return false;
	return true;
}

static bool execute(struct control *control, struct rpc_link *link, const Pc__Relay *relay)
{
	struct directory *dir = control->directory;
	const struct member_record *record = member_by_ref(control, relay->holder);
	struct owner *holder = record ? owner_wanted(dir, record->peer) : NULL;
	size_t failed = 0;

	if (!record || record->self || holder->ref != relay->holder ||
		relay->order <= holder->newest)
		return refuse(control, link, relay);
	if (relay->remove ? !removable(relay)
			  : !entries_rails_fit(relay->n_entries, relay->entries, record->rails))
		return refuse(control, link, relay);
	holder->newest = relay->order;
	if (relay->remove)
		entries_remove(dir, relay->n_entries, relay->entries);
	else
		failed = entries_insert(dir, relay->holder, relay->n_entries, relay->entries);
	answer(link, relay->serial, true, failed, dir->failed);
	links_close(control, member_peer(control, record->peer));
	return true;
}

/* ---- in between ------------------------------------------------------------------------------ */

/* True if one more relay of this link may be passed on. */
static bool room(const struct directory *dir, const struct rpc_link *from)
{
	const struct pass *pass;
	unsigned all = 0, of_link = 0;

	LIST_FOREACH (pass, &dir->passes, next) {
		all++;
		of_link += pass->from == from;
	}
	return all < PASSES_MAX && of_link < PASSES_LINK_MAX;
}

static bool pass_on(
	struct directory *dir, struct rpc_link *from, struct rpc_link *to, const Pc__Relay *relay)
{
	struct pass *pass = room(dir, from) ? malloc(sizeof(*pass)) : NULL;
	Pc__Relay copy = *relay;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!pass)
		return false;
	copy.serial = ++dir->serial;
	message.body_case = PC__MESSAGE__BODY_RELAY;
	message.relay = &copy;
	if (!rpc_send(to, &message)) {
		free(pass);
		return false;
	}
	*pass = (struct pass){.from = from,
		.to = to,
		.serial_from = relay->serial,
		.serial_to = copy.serial,
		.sent_ns = net_now(),
		.count = relay->n_entries};
	LIST_INSERT_HEAD(&dir->passes, pass, next);
	return true;
}

bool directory_serve_relay(struct control *control, struct rpc_link *link, const Pc__Relay *relay)
{
	const struct member_record *record;
	const struct member *entry;
	struct rpc_link *to;

	if (!entries_fit(relay->n_entries, relay->entries) || relay->holder == relay->owner)
		return false;
	if (relay->owner == control->ref)
		return execute(control, link, relay);
	if (relay->holder != member_link_ref(link))
		return false;
	record = member_by_ref(control, relay->owner);
	entry = record ? member_peer(control, record->peer) : NULL;
	to = entry && entry->relays ? member_link(control, relay->owner) : NULL;
	if (!to || !pass_on(control->directory, link, to, relay))
		return refuse(control, link, relay);
	control->counter[COUNTER_relays_passed]++;
	return true;
}

bool pass_answered(struct directory *dir, const struct rpc_link *link, const Pc__Relayed *relayed)
{
	struct pass *pass, was;
	bool good;

	LIST_FOREACH (pass, &dir->passes, next)
		if (pass->serial_to == relayed->serial && pass->to == link)
			break;
	if (!pass)
		return false;
	/* An answer can close the link that it is sent on, and with it end other passes. */
	was = *pass;
	LIST_REMOVE(pass, next);
	free(pass);
	good = failed_fit(was.count, relayed->n_failed, relayed->failed);
	if (was.from)
		answer(was.from, was.serial_from, relayed->done && good,
			good ? relayed->n_failed : 0, relayed->failed);
	return true;
}

/* The first relay that was passed on over this link; NULL: there is none. */
static struct pass *pass_to(const struct directory *dir, const struct rpc_link *link)
{
	struct pass *pass;

	LIST_FOREACH (pass, &dir->passes, next)
		if (!link || pass->to == link)
			break;
	return pass;
}

static void pass_refuse(struct pass *pass)
{
	struct pass was = *pass;

	LIST_REMOVE(pass, next);
	free(pass);
	if (was.from)
		answer(was.from, was.serial_from, false, 0, NULL);
}

/* The first relay that was passed on before this time; NULL: there is none. */
static struct pass *pass_before(const struct directory *dir, uint64_t before_ns)
{
	struct pass *pass;

	LIST_FOREACH (pass, &dir->passes, next)
		if (pass->sent_ns < before_ns)
			break;
	return pass;
}

void passes_tick(struct directory *dir, uint64_t now_ns)
{
	uint64_t dead_ns = (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull;
	struct pass *pass;

	while ((pass = pass_before(dir, now_ns - dead_ns)))
		pass_refuse(pass);
}

void passes_drop(struct directory *dir, const struct rpc_link *link)
{
	struct pass *pass;

	LIST_FOREACH (pass, &dir->passes, next)
		if (!link || pass->from == link)
			pass->from = NULL;
	while ((pass = pass_to(dir, link)))
		pass_refuse(pass);
}
