"""What was said in an earlier run, to another site, or by too few members, counts for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from silo_ends import PROBLEM, End, Line, at_the_start, signed
from silo_sites import Folders, ring
from silo_talking import Group, Walk

from decibel.silo._errors import NothingInCommon
from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol._frames import Hello, Roll, Skip, Stand

RULES = FaultTolerance("continue", beat=0.1, missed=30, deadline=20.0)
STEPS = 60
COMPLETE = tuple((a, b) for a in range(5) for b in range(a + 1, 5))


@pytest.fixture
def federated(tmp_path):
    """The sites of a ring of so many, over gRPC."""
    groups = []

    def found(count, **options):
        groups.append(Group(Folders(tmp_path, replace(ring(count, fault_tolerance=RULES, steps=STEPS), **options))))
        return groups[-1]

    yield found
    for group in groups:
        group.close()


class TestSavedSteps:
    def test_one_that_has_saved_nothing_sends_nobody_back_to_the_beginning(self, federated):
        """Two of three have saved steps 20 and 30; people decide whether all begin again."""
        sites = federated(3)
        talking = [sites(number) for number in range(3)]
        walks = [Walk(one, STEPS, saved) for one, saved in zip(talking, ([20, 30], [20, 30], []), strict=True)]
        for walk in walks[:2]:
            walk.join(10)
            assert walk.steps == [] and isinstance(walk.error, NothingInCommon)
            assert "saved steps 20, 30, and site-2 saved none of them" in str(walk.error)
            assert "--restart" in str(walk.error)
        sites.close()
        talking = [sites(number, restart=True) for number in range(3)]
        walks = [Walk(one, STEPS, saved) for one, saved in zip(talking, ([20, 30], [20, 30], []), strict=True)]
        for walk in walks:
            walk.join(30)
        assert [walk.steps for walk in walks] == [list(range(STEPS))] * 3


def five_sites(**options):
    """Site 0 of five, at its edge with site 1, while the others run."""
    end = End(replace(ring(5, fault_tolerance=RULES, steps=100), **({"edges": COMPLETE} | options)), 0, 1)
    end.connect()
    return end


class TestWords:
    def test_count_if_they_were_said_since_this_site_has_started(self):
        end = five_sites()
        rendezvous = end.site._rendezvous
        end.deliver(Stand(tuple(signed(end, site, 90, fresh=False) for site in (1, 2, 3, 4))))
        assert len(rendezvous.by_site) == 5 and rendezvous.confirmed_step == 0 and len(rendezvous.absent) == 4
        assert not rendezvous.is_start_known
        end.deliver(Stand(tuple(signed(end, site, 90 + site) for site in (1, 2, 3, 4))))
        assert rendezvous.confirmed_step == 92 and not rendezvous.absent

    def test_to_another_site_do_not_count(self):
        """It has heard of another start of this site, or of all sites but this one."""
        end = five_sites()
        for heard in (b"n" * 40, bytes(8) + b"n" * 32):
            end.deliver(Stand(tuple(signed(end, site, 90, heard=heard) for site in (1, 2, 3, 4))))
            assert end.site._rendezvous.confirmed_step == 0
            assert not end.site._rendezvous.others_done

    def test_of_earlier_in_this_run_do_not_count(self):
        """A site was at step 80, was killed, and went back to its checkpoint of step 20."""
        end = five_sites(faulty=0)
        before = signed(end, 1, 80)
        end.deliver(Stand((before,)), Stand((signed(end, 1, 20, incarnation=2),)), Stand((before,)))
        assert end.site._rendezvous.confirmed_step == 20

    @pytest.mark.parametrize("faulty", [0, 1, 2, 3, None])
    def test_of_more_than_may_be_faulty_are_needed(self, faulty):
        end = five_sites(faulty=faulty)
        needed = end.site.federation.confirmations_needed
        assert needed == (3 if faulty is None else faulty + 1)
        for count in range(1, 5):
            end.deliver(Stand((signed(end, count, 40),)))
            assert end.site._rendezvous.confirmed_step == (40 if count >= needed else 0)
            assert end.site._rendezvous.is_start_known == (count >= needed)  # it returns to those who run

    def test_of_all_others_are_enough_where_most_have_started_again(self):
        """One of three runs and waits; two have been started again, and each has only one that runs."""
        end = End(ring(3, fault_tolerance=RULES, steps=100), 0, 1)
        end.connect()
        end.deliver(Stand((signed(end, 1, 40),)))
        assert not end.site._rendezvous.is_start_known
        end.deliver(Stand((signed(end, 2, 0, running=False),)))
        assert end.site._rendezvous.is_start_known and not end.site._rendezvous.start_statements

    def test_settle_a_start_only_if_all_have_heard_of_all(self):
        end = End(ring(3, fault_tolerance=RULES, steps=100), 0, 1)
        end.connect()
        both = at_the_start(end, {1: (10,), 2: (10,)})
        before = signed(end, 2, saved=(10,), running=False)  # it has heard of this site, and not of site 1
        end.deliver(Stand((both[0], before)))
        assert not end.site._rendezvous.is_start_known and not end.site._rendezvous.absent
        end.deliver(Stand((signed(end, 2, saved=(10,), running=False, heard=both[0].heard),)))
        assert end.site._rendezvous.is_start_known

    def test_a_basis_with_another_start_of_this_site_is_none(self):
        federation = ring(3, fault_tolerance=RULES, steps=100)
        end, before = End(federation, 0, 1), End(federation, 0, 1)
        before.site._rendezvous._nonce = 5
        before.site._rendezvous.sign_own(1)
        others = at_the_start(before, {1: (), 2: ()})
        old = before.site._rendezvous.by_site[0]._replace(heard=others[0].heard)
        end.connect()
        end.deliver(Roll(False, (old, *others)))
        assert (
            not end.edge.their_start_statements and not end.site._rendezvous.is_start_known and end.edge.rejected == 0
        )


def test_a_member_that_changes_its_certificate_does_not_part_others():
    """A statement is checked by the certificate that came by the same stream, whatever another neighbour sends."""
    end = five_sites()
    other, line = end.site.edges[4], Line()
    end.site.connected(other, Hello(end.site.federation.hash, PROBLEM, 1, b"n" * 32), line)
    first = signed(end, 2, 10)
    end.deliver(Stand((first,)))
    end.site.receive(other, Stand((first._replace(certificate=b"another"),)), line)
    second = signed(end, 2, 11)
    end.deliver(Stand((second._replace(certificate=b""),)))
    assert end.edge.rejected == 0 and end.site._rendezvous.by_site[2].step == 11


class TestFaulty:
    def test_leaves_an_honest_neighbour_and_a_majority_of_honest_members(self):
        assert [ring(sites).most_faulty for sites in (2, 3, 4, 5, 9)] == [0, 1, 1, 1, 1]
        for sites in range(3, 9):
            complete = tuple((a, b) for a in range(sites) for b in range(a + 1, sites))
            faulty = replace(ring(sites), edges=complete).most_faulty
            assert 2 * faulty < sites <= 2 * (faulty + 1)
        assert replace(ring(5), edges=COMPLETE[:4]).most_faulty == 1  # a star

    @pytest.mark.parametrize("faulty", [-1, 4, True, 1.0, "1"])
    def test_is_a_number_of_members(self, faulty):
        with pytest.raises(
            ValueError, match=r"faulty=.* must be an integer from 0 to 3, of 5 sites; left out, it is 2"
        ):
            replace(ring(5), edges=COMPLETE, faulty=faulty)

    def test_skips_are_limited_by_it(self):
        end = five_sites(faulty=1)
        end.deliver(Stand(tuple(signed(end, site, step) for site, step in ((1, 99), (2, 50), (3, 40)))))
        end.site.running, end.site.next_step = True, 10
        for edge in end.site.edges.values():
            edge.is_open = True
        end.deliver(Skip(99))
        end.site._catch_up()
        assert end.site.next_step == 50
