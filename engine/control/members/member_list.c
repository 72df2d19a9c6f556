/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The member list in pages. Neighbours compare digests of their lists in heartbeats; one that
 * differs sends the sums of its 64 or 512 buckets and gets the records of those that differ, in
 * pages of 16 KiB. So a new engine takes the list of the first member that it reaches, and a record
 * that an engine missed is repaired. Control plane's thread only.
 */
#include <string.h>

#include "engine/control/members/member.h"

/* Sums of `buckets` buckets: those of MEMBER_BUCKETS_MAX, folded. */
static void sums_fill(
	const struct members *members, unsigned buckets, uint64_t ret[MEMBER_BUCKETS_MAX])
{
	memset(ret, 0, buckets * sizeof(*ret));
	for (unsigned i = 0; i < MEMBER_BUCKETS_MAX; i++)
		ret[i % buckets] += members->sum[i];
}

static void ask(struct control *control, struct rpc_link *link, unsigned from)
{
	struct members *members = control->members;
	uint64_t sums[MEMBER_BUCKETS_MAX];
	Pc__ListAsk body = PC__LIST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!from)
		members->list_buckets =
			members->alive > MEMBER_BUCKETS_FEW ? MEMBER_BUCKETS_MAX : MEMBER_BUCKETS;
	sums_fill(members, members->list_buckets, sums);
	body.serial = ++members->list_serial;
	body.n_sums = members->list_buckets;
	body.sums = sums;
	body.from = from;
	message.body_case = PC__MESSAGE__BODY_LIST_ASK;
	message.list_ask = &body;
	members->list_via = rpc_send(link, &message) ? link : NULL;
}

void member_list_compare(struct control *control, struct rpc_link *link, uint64_t now_ns)
{
	struct members *members = control->members;

	if (members->list_ns && now_ns - members->list_ns < MEMBER_LIST_NS)
		return;
	/* While records arrive, the lists differ anyway. */
	if (members->list_ns && members->news_sent >= NEWS_MANY &&
		now_ns - members->news_ns < MEMBER_LIST_NS &&
		now_ns - members->list_ns < 5 * MEMBER_LIST_NS)
		return;
	members->list_ns = now_ns;
	ask(control, link, 0);
}

bool member_list_page(struct control *control, struct rpc_link *link, const Pc__ListPage *page)
{
	struct members *members = control->members;

	if (page->n_records > PAGE_RECORDS_MAX)
		return false;
	if (members->list_via != link || page->serial != members->list_serial)
		return true; /* the answer to an earlier request */
	if (page->next > members->list_buckets)
		return false;
	members->list_via = NULL;
	if (!member_records(control, link, page->n_records, page->records))
		return false;
	if (page->next < members->list_buckets && !link->closed)
		ask(control, link, page->next);
	return true;
}

/*
 * Adds the records of one bucket of `buckets`, a power of two, as the length of the hash table by
 * name is; false: the page is full.
 */
static bool bucket_add(
	struct members *members, struct record_list *list, unsigned buckets, unsigned bucket)
{
	const struct member_table *table = &members->table;
	unsigned count = list->count, step = buckets < table->heads ? buckets : table->heads;
	size_t bytes = list->bytes;

	for (unsigned head = bucket % step; head < table->heads; head += step)
		for (uint16_t i = table->by_name[head]; i != MEMBER_NONE;
			i = member_at(table, i)->next_name) {
			struct member *member = member_at(table, i);

			if (member->state != MEMBER_ALIVE && member->state != MEMBER_DEAD)
				continue;
			if (!member->admission ||
				(step < buckets && member_hash(member) % buckets != bucket) ||
				record_add(list, member))
				continue;
			if (count == 0)
				return true; /* one bucket alone fills the page */
			list->count = count;
			list->bytes = bytes;
			return false;
		}
	return true;
}

bool member_list_ask(struct control *control, struct rpc_link *link, const Pc__ListAsk *request)
{
	struct members *members = control->members;
	struct record_list *list = record_list_empty();
	uint64_t sums[MEMBER_BUCKETS_MAX];
	Pc__ListPage page = PC__LIST_PAGE__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	unsigned bucket = request->from, buckets = (unsigned)request->n_sums;

	if ((request->n_sums != MEMBER_BUCKETS && request->n_sums != MEMBER_BUCKETS_MAX) ||
		bucket >= buckets)
		return false;
	sums_fill(members, buckets, sums);
	for (; bucket < buckets; bucket++)
		if (sums[bucket] != request->sums[bucket] &&
			!bucket_add(members, list, buckets, bucket))
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
