#!/usr/bin/python3
"""What racks and zones send to each other in an all-reduce, by the counters of their uplinks."""
# san: yes
from kit import enter_namespaces, expect_codes, has_namespaces, main, need_namespaces, test
from racks_net import GRADIENT, RACKS, STEPS, alone, cables, job_of, sent, start, weights

TOLERANCE = 0.03


def per_step(places, lanes, locations=None, topology="auto", absent=0, tree=None):
    """Returns what each rack and then each zone sends in a step, in gradients of the whole model, the weights, and the tasks."""
    elastic = {"min_world": len(places), "rejoin_seconds": 0.1} if absent > 0 else {}
    job = job_of(lanes, topology, elastic=elastic, tree=tree)
    switches = ["rack%d" % r for r in range(RACKS)] + ["zone0", "zone1"]
    before = [sent(x) for x in switches]
    tasks = start(job, places, locations, absent)
    expect_codes(tasks, [0] * len(tasks))
    return [(sent(x) - b) / STEPS / GRADIENT for x, b in zip(switches, before)], weights(job), tasks


def expect_traffic(found, racks, vectors):
    for rack in range(RACKS):
        low, high = (-0.01, 0.01) if rack >= racks else (vectors * (1 - TOLERANCE), vectors * (1 + TOLERANCE))
        assert low <= found[rack] <= high, (found, vectors)


def sorted_places(racks, hosts):
    return [(r, h) for r in range(racks) for h in range(hosts)]


@test
def two_racks_of_two_hosts_send_one_gradient_each_in_any_order_of_tasks():
    need_namespaces()
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2)):
        places = [sorted_places(2, 2)[i] for i in order]
        found, result, tasks = per_step(places, 8)
        expect_traffic(found, 2, 2 * (1 - 1 / 2))
        assert result == alone(8), order
        said = " ".join(r["message"] for r in tasks[0].events("order"))
        assert "in the order of locations, since all training tasks have one; 2 racks: zone/rack%d with 2 tasks" % places[0][0] in said, said


@test
def without_locations_alternating_racks_send_twice_as_much():
    need_namespaces()
    places = [(0, 0), (1, 0), (0, 1), (1, 1)]
    full = ["a/1", "b/1", "a/2", "b/2"]
    for how, words in (({"locations": ["", "", "", ""]}, None), ({"locations": full[:3] + [""]}, "since worker 3 has no location"),
                       ({"locations": full, "topology": "flat"}, None)):
        found, result, tasks = per_step(places, 8, **how)
        expect_traffic(found, 2, 2)
        assert result == alone(8), how
        said = " ".join(r["message"] for r in tasks[0].events("order"))
        assert (words in said) if words else said == "", (how, said)


@test
def racks_that_are_subtrees_send_the_least_and_others_as_much_as_their_subtrees_require():
    """The racks of 3 hosts are two subtrees each, of two hosts and of one, so they send 3 (1 - 1/R) gradients in place of 2 (1 - 1/R),
    and the leader advises a lane_tree. If every host exchanged with every other one, that would be 8/3, 3 and 4."""
    need_namespaces()
    for racks, hosts, vectors in ((3, 2, 2 * (1 - 1 / 3)), (2, 3, 3 * (1 - 1 / 2)), (3, 3, 3 * (1 - 1 / 3))):
        places = sorted_places(racks, hosts)
        lanes = len(places)
        for order in (places if hosts < 3 else places[::2] + places[1::2],):
            found, result, tasks = per_step(order, lanes)
            expect_traffic(found, racks, vectors)
            assert result == alone(lanes), order
            assert ("\"lane_tree\": [%d, %d]" % (racks, hosts) in advice(tasks)) == (hosts == 3), advice(tasks)
            assert any("; %d racks" % racks in r["message"] for r in tasks[0].events("note")), tasks[0].log()


def advice(tasks):
    return " ".join(r["message"] for r in tasks[0].events("racks"))


@test
def racks_of_three_hosts_are_subtrees_of_a_lane_tree_and_send_the_least():
    """The leader advises the tree, and takes back nothing: with the tree it has no more advice."""
    need_namespaces()
    for racks, hosts, lanes, tree in ((2, 3, 6, [2, 3]), (3, 3, 9, [3, 3]), (2, 3, 12, [2, 6]), (2, 3, 18, [2, 3, 3]), (2, 2, 4, [2, 2])):
        places = sorted_places(racks, hosts)
        found, result, tasks = per_step(places[::2] + places[1::2], lanes, tree=tree)
        print("%d racks of %d hosts, %d lanes as %s: a rack sends %s gradients, the least is %.4f" % (
            racks, hosts, lanes, tree, " ".join("%.4f" % x for x in found[:racks]), 2 * (1 - 1 / racks)))
        expect_traffic(found, racks, 2 * (1 - 1 / racks))
        assert result == alone(lanes, tree=tuple(tree)), tree
        assert (result == alone(lanes)) == (hosts == 2), tree
        assert advice(tasks) == "", advice(tasks)


@test
def racks_of_a_lane_tree_send_the_least_after_a_host_is_lost():
    """8 of 9 tasks: the rack of two hosts computes its three lanes."""
    need_namespaces()
    places = [p for p in sorted_places(3, 3) if p != (1, 2)]
    found, result, tasks = per_step(places, 9, absent=1, tree=[3, 3])
    expect_traffic(found, 3, 2 * (1 - 1 / 3))
    assert result == alone(9, tree=(3, 3))
    said = " ".join(r["message"] for r in tasks[0].events("order"))
    assert said.endswith("; 9 lanes: 1 1 1 | 2 1 | 1 1 1"), said


@test
def zones_and_the_racks_of_a_zone_send_the_least_at_the_same_time():
    """A zone sends 2 (1 - 1/2) gradients. A rack of 2 in a zone of 2 racks sends as much to the other rack, and its part to the other
    zone: the blocks of two vectors. 6 tasks, 2 + 2 and 2, are no power of two, so halving/doubling is not possible."""
    need_namespaces()
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    names = ["zone%d/rack%d/host%d" % (rack // 2, rack, host) for rack, host in places]
    order = [0, 4, 2, 5, 1, 3]
    found, result, tasks = per_step([places[i] for i in order], 6, locations=[names[i] for i in order])
    assert all(abs(zone - 1) < TOLERANCE for zone in found[RACKS:]), found
    assert all(abs(rack - 1.5) < TOLERANCE for rack in found[:2]), found
    assert result == alone(6)
    assert any("; 2 zones, 2 racks" in r["message"] for r in tasks[0].events("note")), tasks[0].log()


@test
def lanes_are_cut_along_racks_where_the_largest_share_does_not_grow():
    """6 of 8 tasks have 8 lanes: in the order of ranks 1, 1, 1, 1, 2, 2, so the second rack would be two subtrees; in racks 1, 1, 2 twice."""
    need_namespaces()
    found, result, tasks = per_step(sorted_places(2, 3), 8, absent=2)
    expect_traffic(found, 2, 2 * (1 - 1 / 2))
    assert result == alone(8)
    said = " ".join(r["message"] for r in tasks[0].events("order"))
    assert said.endswith("; 8 lanes: 1 1 2 | 1 1 2"), said


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        cables()
    main()
