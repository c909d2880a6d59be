"""Puts filters around what a template compares, cuts and joins, so that the sandbox can count it. Pure."""

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

LOOP, CONCAT, FLAT, COST, CUT = "_loop", "_concat", "_flat", "_cost", "_cut"


def filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Bounding(NodeTransformer):
    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = filtered(node.expr, COST)
        for operand in node.ops:
            operand.expr = filtered(operand.expr, COST)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = filtered(node.node, CUT)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return filtered(nodes.List(node.nodes, lineno=node.lineno), CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return filtered(node, FLAT)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return filtered(node, FLAT)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return filtered(node, FLAT) if node.ctx == "load" else node


def with_bounds(template: nodes.Template) -> nodes.Template:
    bounded: nodes.Template = _Bounding().visit(template)
    assert template.environment is not None
    bounded.set_environment(template.environment)
    return bounded
