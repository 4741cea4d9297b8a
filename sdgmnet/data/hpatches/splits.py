"""Names of HPatches' sequences and of its official test splits: facts of the benchmark's own `splits.json`.

From the HPatches benchmark by Balntas, Lenc, Vedaldi and Mikolajczyk (CVPR 2017). The order of the names is the file's: drawing
the official tasks anew depends on it.
"""


def names(text: str) -> list[str]:
    return text.split()


ILLUMINATION = names("""
i_crownnight i_table i_objects i_nescafe i_nijmegen i_whitebuilding i_porta i_santuario i_dc i_castle i_steps
i_contruction i_melon i_yellowtent i_miniature i_troulos i_veggies i_zion i_gonnenberg i_autannes i_boutique
i_fruits i_pool i_fog i_fenis i_village i_ajuntament i_partyfood i_kurhaus i_school i_chestnuts i_smurf
i_indiana i_pinard i_lionnight i_kions i_ski i_greenhouse i_ktirio i_tools i_toy i_bridger i_lionday i_brooklyn
i_crownday i_londonbridge i_greentea i_leuven i_nuts i_resort i_bologna i_duda i_dome i_pencils i_books
i_parking i_salon
""")

VIEWPOINT = names("""
v_circus v_charing v_colors v_astronautis v_maskedman v_talent v_london v_underground v_coffeehouse v_calder
v_grace v_yard v_dogman v_laptop v_eastsouth v_boat v_strand v_busstop v_artisans v_machines v_soldiers v_home
v_wapping v_wounded v_weapons v_adam v_there v_vitro v_cartooncity v_abstract v_dirtywall v_beyus v_apprentices
v_sunseason v_wall v_war v_bricks v_fest v_churchill v_blueprint v_tempera v_samples v_man v_bees v_pomegranate
v_bip v_feast v_azzola v_woman v_yuri v_posters v_bird v_graffiti v_bark v_wormhole v_tabletop v_courses
v_birdwoman v_gardens
""")

A = names("""
i_ajuntament i_resort i_table i_troulos i_bologna i_lionnight i_porta i_zion i_brooklyn i_fruits i_books
i_bridger i_whitebuilding i_kurhaus i_salon i_autannes i_tools i_santuario i_fog i_nijmegen v_courses
v_coffeehouse v_abstract v_feast v_woman v_talent v_tabletop v_bees v_strand v_fest v_yard v_underground
v_azzola v_eastsouth v_yuri v_soldiers v_man v_pomegranate v_birdwoman v_busstop
""")

B = names("""
i_fruits i_melon i_castle i_resort i_chestnuts i_kions i_kurhaus i_autannes i_duda i_partyfood i_ski i_dome
i_greenhouse i_pencils i_porta i_lionday i_school i_bridger i_village i_fog v_astronautis v_bip v_charing
v_woman v_feast v_yard v_churchill v_graffiti v_london v_sunseason v_posters v_bees v_apprentices v_birdwoman
v_colors v_laptop v_there v_adam v_underground v_war
""")

C = names("""
i_ski i_table i_troulos i_melon i_tools i_kions i_londonbridge i_nijmegen i_boutique i_parking i_steps i_fog
i_leuven i_dc i_partyfood i_pool i_castle i_bologna i_smurf i_crownnight v_azzola v_tempera v_machines
v_coffeehouse v_graffiti v_artisans v_maskedman v_talent v_bees v_dirtywall v_blueprint v_war v_adam
v_pomegranate v_busstop v_weapons v_gardens v_feast v_man v_wounded
""")

SPLITS: dict[str, list[str]] = {
    "a": A,
    "b": B,
    "c": C,
    "full": ILLUMINATION + VIEWPOINT,
    "illum": ILLUMINATION,
    "view": VIEWPOINT,
}
