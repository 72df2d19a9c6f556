/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas: what a session and a user may take of what clients share. Runs on the control plane's
 * thread only.
 */
#include <errno.h>
#include <inttypes.h>

#include "config/settings.h"
#include "config/text_fit.h"
#include "engine/control/clients/clients_inner.h"

static const struct {
	unsigned total, min, sure;
} shares[] = {
	[SHARE_CHANNELS] = {CHANNELS_MAX, CHANNELS_SESSION_MIN, CHANNELS_SESSION_SURE},
	[SHARE_RANGES] = {CLIENT_RANGES_MAX, RANGES_SESSION_MIN, RANGES_SESSION_SURE},
	[SHARE_EXTENTS] = {EXTENTS_MAX, EXTENTS_SESSION_MIN, EXTENTS_SESSION_SURE},
};

static unsigned session_share_has(const struct session *s, enum client_share what)
{
	return what == SHARE_CHANNELS ? s->channels : what == SHARE_RANGES ? s->ranges : s->extents;
}

unsigned clients_left(const struct clients *clients, enum client_share what)
{
	unsigned taken = what == SHARE_CHANNELS ? clients->channels
			 : what == SHARE_RANGES ? clients->ranges
						: clients->extents;

	return shares[what].total - taken;
}

/* What the other sessions, those included that are not attached yet, are still sure to get. */
static unsigned clients_kept_for_others(const struct session *s, enum client_share what)
{
	const struct clients *clients = s->control->clients;
	unsigned kept = 0;

	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		const struct session *other = clients->session[i];
		unsigned has = other ? session_share_has(other, what) : 0;

		if (other != s && has < shares[what].sure)
			kept += shares[what].sure - has;
	}
	return kept;
}

/* What a session has beyond what it is sure of. */
static unsigned session_share_beyond(const struct session *s, enum client_share what)
{
	unsigned has = s ? session_share_has(s, what) : 0;

	return has > shares[what].sure ? has - shares[what].sure : 0;
}

unsigned clients_users(const struct session *s, enum client_share what)
{
	struct session *const *session = s->control->clients->session;
	unsigned users = 1;

	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		bool counts = session_share_beyond(session[i], what) && session[i]->uid != s->uid;

		for (unsigned j = 0; j < i && counts; j++)
			counts = !session_share_beyond(session[j], what) ||
				 session[j]->uid != session[i]->uid;
		users += counts;
	}
	return users;
}

/* Whether one of `sharers` that has `has` of it may take `wants` of the `rest`. */
static bool share_allows(
	unsigned rest, unsigned wants, unsigned has, unsigned sharers, enum client_share what)
{
	unsigned share = (rest - wants) / (sharers ? sharers : 1);

	return has + wants <= (share < shares[what].min ? shares[what].min : share);
}

bool session_may_take(const struct session *s, enum client_share what, unsigned wants)
{
	const struct clients *clients = s->control->clients;
	unsigned left = clients_left(clients, what), kept = clients_kept_for_others(s, what);
	unsigned has = session_share_has(s, what), users, beyond = 0;

	if (left < kept || left - kept < wants)
		return false;
	if (has + wants <= shares[what].sure)
		return true;
	users = clients_users(s, what);
	for (unsigned i = 0; i < SESSIONS_MAX; i++)
		if (clients->session[i] && clients->session[i]->uid == s->uid)
			beyond += session_share_beyond(clients->session[i], what);
	return share_allows(left - kept, wants, has, clients->sessions, what) &&
	       (users == 1 || share_allows(left - kept, wants, beyond, users, what));
}

bool user_may_attach(const struct session *s, unsigned *ret_has)
{
	const struct clients *clients = s->control->clients;
	unsigned kept = (client_access_users(&clients->access) - 1) * SESSIONS_USER_SURE;

	*ret_has = 0;
	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		const struct session *other = clients->session[i];
		unsigned same = 0;

		if (!other)
			continue;
		*ret_has += other->uid == s->uid;
		for (unsigned j = 0; j < i; j++)
			same += clients->session[j] && clients->session[j]->uid == other->uid;
		if (kept && other->uid != s->uid && same < SESSIONS_USER_SURE)
			kept--;
	}
	return *ret_has < SESSIONS_USER_SURE || clients->sessions + kept < SESSIONS_MAX;
}

/* Bytes that all sessions of the user have registered, without staging memory. */
static uint64_t user_memory(const struct session *s)
{
	const struct clients *clients = s->control->clients;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < REGIONS_MAX; i++) {
		const struct region *r = clients->region[i];

		bytes += r && !r->staging_of && r->session->uid == s->uid ? r->length : 0;
	}
	return bytes;
}

int region_quota_check(
	const struct session *s, unsigned extents, uint64_t length, char *text, size_t bytes)
{
	const struct clients *clients = s->control->clients;
	uint64_t most = s->control->settings->engine_user_memory, has = most ? user_memory(s) : 0;

	if (most && (has > most || length > most - has)) {
		text_fit(text, bytes,
			"user %u has registered %" PRIu64 " bytes, and with %" PRIu64
			" more it has more than engine.user_memory, %" PRIu64
			". Release ranges, or raise it",
			(unsigned)s->uid, has, length, most);
		return -EMFILE;
	}
	if (!session_may_take(s, SHARE_RANGES, 1)) {
		text_fit(text, bytes,
			"this session has registered %u memory ranges and may have no more: %u of %u are left to %u sessions of %u users and those to come. Register fewer, larger ranges, or release some",
			s->ranges, clients_left(clients, SHARE_RANGES), CLIENT_RANGES_MAX,
			clients->sessions, clients_users(s, SHARE_RANGES));
		return -EMFILE;
	}
	if (!session_may_take(s, SHARE_EXTENTS, extents)) {
		text_fit(text, bytes,
			"this range needs %u registrations; the session has %u, and %u of %u are left to %u sessions of %u users and those to come. Put it on huge pages, raise rail.mr_bytes or release ranges",
			extents, s->extents, clients_left(clients, SHARE_EXTENTS), EXTENTS_MAX,
			clients->sessions, clients_users(s, SHARE_EXTENTS));
		return -EMFILE;
	}
	return 0;
}
