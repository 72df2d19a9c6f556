/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The member list in pages. Neighbours compare digests of their lists in heartbeats; one that
 * differs sends the sums of its 64 buckets and gets the records of those that differ, in pages
 * of 16 KiB. So a new engine takes the list of the first member that it reaches, and a
 * record that an engine missed is repaired. Control plane's thread only.
 */
#include "engine/control/member.h"

static unsigned bucket_of(const struct member_entry *entry)
{
	return (unsigned)(entry->name_hash % MEMBER_BUCKETS);
}

static void sums_fill(const struct member *member, uint64_t ret[MEMBER_BUCKETS])
{
	for (unsigned i = 0; i < MEMBER_BUCKETS; i++)
		ret[i] = 0;
	for (unsigned i = 0; i < MEMBER_ENTRIES; i++)
		if (member->entry[i].state == MEMBER_ALIVE)
			ret[bucket_of(&member->entry[i])] +=
				map_mix(member->entry[i].record.map.incarnation);
}

static void ask(struct control *control, struct rpc_link *link, unsigned from)
{
	struct member *member = control->member;
	uint64_t sums[MEMBER_BUCKETS];
	Pc__ListAsk body = PC__LIST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	sums_fill(member, sums);
	body.serial = ++member->list_serial;
	body.n_sums = MEMBER_BUCKETS;
	body.sums = sums;
	body.from = from;
	message.body_case = PC__MESSAGE__BODY_LIST_ASK;
	message.list_ask = &body;
	member->list_via = rpc_send(link, &message) ? link : NULL;
}

void member_list_compare(struct control *control, struct rpc_link *link, uint64_t now_ns)
{
	struct member *member = control->member;

	if (member->list_ns && now_ns - member->list_ns < MEMBER_LIST_NS)
		return;
	member->list_ns = now_ns;
	ask(control, link, 0);
}

bool member_list_page(struct control *control, struct rpc_link *link, const Pc__ListPage *page)
{
	struct member *member = control->member;

	if (page->next > MEMBER_BUCKETS || page->n_records > NODES_MAX)
		return false;
	if (member->list_via != link || page->serial != member->list_serial)
		return true; /* the answer to an earlier request */
	member->list_via = NULL;
	if (!member_records(control, link, page->n_records, page->records))
		return false;
	if (page->next < MEMBER_BUCKETS && !link->closed)
		ask(control, link, page->next);
	return true;
}

/* Adds the records of one bucket; false: the page is full. */
static bool bucket_add(struct member *member, struct record_list *list, unsigned bucket)
{
	unsigned count = list->count;
	size_t bytes = list->bytes;

	for (unsigned i = 0; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];

		if (entry->state != MEMBER_ALIVE && entry->state != MEMBER_DEAD)
			continue;
		if (bucket_of(entry) == bucket && entry->admission && !record_add(list, entry)) {
			if (count == 0)
				return true; /* one bucket alone fills the page */
			list->count = count;
			list->bytes = bytes;
			return false;
		}
	}
	return true;
}

bool member_list_ask(struct control *control, struct rpc_link *link, const Pc__ListAsk *request)
{
	struct member *member = control->member;
	struct record_list *list = member->records;
	uint64_t sums[MEMBER_BUCKETS];
	Pc__ListPage page = PC__LIST_PAGE__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	unsigned bucket = request->from;

	if (request->n_sums != MEMBER_BUCKETS || bucket >= MEMBER_BUCKETS)
		return false;
	sums_fill(member, sums);
	list->count = 0;
	list->bytes = 0;
	for (; bucket < MEMBER_BUCKETS; bucket++)
		if (sums[bucket] != request->sums[bucket] && !bucket_add(member, list, bucket))
			break;
	page.serial = request->serial;
	page.n_records = list->count;
	page.records = list->at;
	page.next = bucket;
	message.body_case = PC__MESSAGE__BODY_LIST_PAGE;
	message.list_page = &page;
	rpc_reply(link, &message);
	return true;
}
